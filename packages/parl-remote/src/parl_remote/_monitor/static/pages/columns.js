// Columns that several tables share.
import { h, pill } from "../lib/dom.js";
import { bytes, clock, count, decimal, duration, moment, percent, rate } from "../lib/format.js";

export const link = (kind, id, text) => h("a", { href: `/${kind}/${encodeURIComponent(id)}` }, text || id);

export const actorColumns = [
  { label: "State", sort: "state", cell: (row) => pill(row.state) },
  { label: "Class", sort: "class", cell: (row) => link("actors", row.actor_id, row.class_name) },
  { label: "Name", sort: "name", cell: (row) => row.name, minor: true },
  { label: "Node", sort: "node", cell: (row) => (row.node_id ? link("nodes", row.node_id, row.node_name) : "") },
  { label: "Owner", sort: "owner", cell: (row) => row.owner_name || (row.detached ? "detached" : ""), minor: true },
  { label: "Running", cell: running, minor: true },
  { label: "Calls/s", sort: "calls", number: true, cell: (row) => rate(row.calls_per_s) },
  { label: "CPU", sort: "cpu", number: true, cell: (row) => percent(row.cpu) },
  { label: "Memory", sort: "memory", number: true, cell: (row) => bytes(row.memory) },
  { label: "Age", sort: "age", number: true, cell: (row) => duration(row.age_s) },
  { label: "Errors", sort: "errors", number: true, cell: (row) => (row.errors ? count(row.errors) : "") },
  { label: "Last error", wide: true, cell: (row) => (row.last_error ? h("span", { class: "error", title: row.last_error }, row.last_error) : "") },
];

function running(row) {
  if (!row.running) return "";
  return h("code", {}, `${row.running}()`, row.running_s >= 1 ? h("span", { class: "muted" }, ` ${duration(row.running_s)}`) : "");
}

export const deathColumns = [
  { label: "When", sort: "at", cell: (row) => h("time", { datetime: new Date(row.at * 1000).toISOString() }, moment(row.at)) },
  { label: "Actor", sort: "class", cell: (row) => link("deaths", row.actor_id, row.class_name) },
  { label: "Name", cell: (row) => row.name, minor: true },
  { label: "Cause", sort: "kind", cell: (row) => pill(row.kind) },
  { label: "What happened", wide: true, cell: (row) => h("span", { title: row.text }, row.text) },
  { label: "Last call", cell: (row) => (row.last_call ? h("code", {}, `${row.last_call}()`) : ""), minor: true },
  { label: "Node", sort: "node", cell: (row) => (row.node_id ? link("nodes", row.node_id, row.node_name) : row.node_name) },
  { label: "Owner", sort: "owner", cell: (row) => row.owner_name, minor: true },
];

export function bar(share, text) {
  const fill = h("i");
  fill.style.width = `${Math.round(Math.min(1, Math.max(0, share || 0)) * 100)}%`;
  return h("span", { class: "bar" }, h("span", { class: "track", "aria-hidden": "true" }, fill), h("span", {}, text));
}

export { bytes, clock, count, decimal, duration, moment, percent, rate };
