// One actor's end: the cause, how its memory grew, what it wrote last.
import { get, live } from "../lib/api.js";
import { TimeChart } from "../lib/chart.js";
import { byId, empty, facts, h, notice, pill } from "../lib/dom.js";
import { bytes, link, moment } from "./columns.js";
import { stripped } from "./logtext.js";

const id = byId("page").dataset.id;
const size = Object.assign((value) => bytes(value), { binary: true });

// The limit is for what it has grown by since its start, whose size is seen if it did not live long.
function limitOf({ memory_limit: limit, memory_curve: curve }) {
  if (!limit) return null;
  const sizes = curve.map(([, used]) => used);
  return limit + Math.max(0, Math.min(sizes[0], sizes[sizes.length - 1] - limit));
}

try {
  const row = await get(`/api/v1/deaths/${encodeURIComponent(id)}`);
  live(true);
  document.title = `${row.class_name} died · PARL monitor`;
  byId("title").textContent = row.name ? `${row.class_name} “${row.name}”` : row.class_name;
  byId("state").replaceChildren(pill(row.kind));
  byId("cause").textContent = row.text[0].toUpperCase() + row.text.slice(1);
  facts(byId("facts"), [
    ["When", moment(row.at)],
    ["Last call", row.last_call ? h("code", {}, `${row.last_call}()`) : null],
    ["Exit status", row.exit_code],
    ["Signal", row.signal],
    ["Memory limit", row.memory_limit ? `${bytes(row.memory_limit)} above its start` : null],
    ["Most memory", row.memory_peak ? bytes(row.memory_peak) : null],
    ["Node", row.node_id ? link("nodes", row.node_id, row.node_name) : row.node_name],
    ["Owner", row.owner_name],
    ["Id", h("code", {}, row.actor_id)],
  ]);
  if (row.memory_curve.length) {
    new TimeChart(byId("charts"), {
      title: "Memory before the end", series: [{ name: "memory", label: "resident", color: "s2" }], format: size, limit: limitOf(row), ago: true,
    }).set({ t: row.memory_curve.map(([at]) => -at), memory: row.memory_curve.map(([, used]) => used) });
  }
  const log = byId("log");
  if (row.log_tail.length) log.textContent = stripped(row.log_tail.join("\n"));
  else log.replaceWith(empty("No output."));
} catch (error) {
  live(error.status === 404, error.message);
  notice(byId("problem"), error.message);
}
