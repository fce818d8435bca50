// Actors that ended, and why.
import { byId } from "../lib/dom.js";
import { DataTable } from "../lib/table.js";
import { deathColumns } from "./columns.js";

const kinds = ["exit", "signal", "memory", "out_of_memory", "node_lost", "constructor", "import", "killed_by_user", "drained"];

new DataTable(byId("list"), {
  path: "/api/v1/deaths",
  noun: "death",
  filters: [{ name: "kind", label: "Cause", options: [["", "Any cause"], ...kinds.map((kind) => [kind, kind.replaceAll("_", " ")])] }],
  also: ["node"],
  sortedBy: ["at", "desc"],
  rowHead: 1,
  none: "No actor has been lost since the monitor started.",
  columns: deathColumns,
});
