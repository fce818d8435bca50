// What has happened in the cluster, the latest first.
import { byId, h, pill } from "../lib/dom.js";
import { DataTable } from "../lib/table.js";
import { link, moment } from "./columns.js";

const kinds = ["node_joined", "node_lost", "node_left", "node_draining", "node_drained", "node_acknowledged", "actor_lost", "out_of_memory", "actor_restarted"];

new DataTable(byId("list"), {
  path: "/api/v1/events",
  noun: "event",
  filters: [{ name: "kind", label: "Kind", options: [["", "Any kind"], ...kinds.map((kind) => [kind, kind.replaceAll("_", " ")])] }],
  also: ["node", "actor"],
  sortedBy: ["at", "desc"],
  rowHead: 1,
  none: "Nothing has happened yet.",
  columns: [
    { label: "When", sort: "at", cell: (row) => h("time", { datetime: new Date(row.at * 1000).toISOString() }, moment(row.at)) },
    { label: "Kind", sort: "kind", cell: (row) => pill(row.kind) },
    { label: "What happened", wide: true, cell: (row) => h("span", { title: row.text }, row.text) },
    { label: "Node", sort: "node", cell: (row) => (row.node_id ? link("nodes", row.node_id, row.node_name) : row.node_name) },
    { label: "Actor", cell: (row) => (row.actor_id ? link(row.kind === "actor_restarted" ? "actors" : "deaths", row.actor_id, row.name || row.class_name) : ""), minor: true },
    { label: "Owner", cell: (row) => row.owner_name, minor: true },
  ],
});
