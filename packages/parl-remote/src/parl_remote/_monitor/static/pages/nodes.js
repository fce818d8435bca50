// All nodes.
import { spark } from "../lib/chart.js";
import { byId, h, pill } from "../lib/dom.js";
import { DataTable } from "../lib/table.js";
import { bar, bytes, count, decimal, duration, link, moment, percent } from "./columns.js";

new DataTable(byId("list"), {
  path: "/api/v1/nodes",
  noun: "node",
  fixed: { spark: 1, window: 600 },
  filters: [{ name: "state", label: "State", options: [["", "Any state"], ["alive", "Alive"], ["draining", "Draining"], ["drained", "Drained"], ["silent", "Silent"], ["lost", "Lost"]] }],
  sortedBy: ["name", "asc"],
  rowHead: 1,
  interval: 4000,
  none: "No node has joined.",
  columns: [
    { label: "State", sort: "state", cell: (row) => pill(row.state) },
    { label: "Node", sort: "name", cell: (row) => h("span", { title: row.address }, link("nodes", row.node_id, row.label || row.name), row.lost_at === null ? null : h("div", { class: "muted clip why", title: row.cause }, `${moment(row.lost_at)}: ${row.cause}`)) },
    { label: "last 10 min", cell: (row) => spark(row.spark.cpu, "s1"), minor: true },
    { label: "CPU busy", sort: "cpu", number: true, cell: (row) => percent(row.cpu_busy) },
    { label: "Load", sort: "load", number: true, minor: true, cell: (row) => decimal(row.load) },
    { label: "last 10 min", cell: (row) => spark(row.spark.memory, "s2"), minor: true },
    { label: "Memory", sort: "memory", number: true, cell: (row) => (row.memory_total ? `${bytes(row.memory_used)} / ${bytes(row.memory_total)}` : "–") },
    { label: "CPUs", sort: "cpus_used", cell: (row) => bar(row.cpus ? row.cpus_used / row.cpus : 0, `${decimal(row.cpus_used)} of ${decimal(row.cpus)}`) },
    { label: "GPUs", sort: "gpus_used", cell: (row) => (row.gpus ? bar(row.gpus_used / row.gpus, `${decimal(row.gpus_used)} of ${decimal(row.gpus)}`) : "") },
    { label: "GPU busy", sort: "gpu", number: true, minor: true, cell: (row) => (row.gpus ? percent(row.gpu_busy) : "") },
    { label: "Actors", sort: "actors", number: true, cell: (row) => count(row.actors) },
    { label: "Heard", sort: "silent", number: true, minor: true, cell: (row) => `${duration(row.silent_s)} ago` },
  ],
});
