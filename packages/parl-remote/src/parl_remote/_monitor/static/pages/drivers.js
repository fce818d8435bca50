// Programs that use the cluster.
import { byId, h } from "../lib/dom.js";
import { DataTable } from "../lib/table.js";
import { count, moment } from "./columns.js";

new DataTable(byId("list"), {
  path: "/api/v1/drivers",
  noun: "driver",
  sortedBy: ["name", "asc"],
  none: "No program uses the cluster now.",
  columns: [
    { label: "Program", sort: "name", cell: (row) => row.name || row.client_id },
    { label: "Process", sort: "pid", number: true, cell: (row) => row.pid || "–" },
    { label: "Host", sort: "host", cell: (row) => row.host },
    { label: "Actors", sort: "actors", number: true, cell: (row) => (row.actors ? h("a", { href: `/actors?owner=${encodeURIComponent(row.client_id)}` }, count(row.actors)) : "0") },
    { label: "Waiting", sort: "waiting", number: true, cell: (row) => count(row.waiting) },
    { label: "Since", sort: "since", cell: (row) => moment(row.since), minor: true },
    { label: "Id", cell: (row) => h("code", {}, row.client_id), minor: true },
  ],
});
