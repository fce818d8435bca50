// One node.
import { get, live, poll, post } from "../lib/api.js";
import { TimeChart } from "../lib/chart.js";
import { byId, facts, h, notice, pill } from "../lib/dom.js";
import { DataTable } from "../lib/table.js";
import { chartBoard } from "./charts.js";
import { actorColumns, bar, bytes, count, deathColumns, decimal, duration, moment, percent } from "./columns.js";
import { plural } from "../lib/format.js";

const id = byId("page").dataset.id;
const path = `/api/v1/nodes/${encodeURIComponent(id)}`;
const board = byId("charts");
const full = { format: percent, most: 1, fixed: true };
const charts = [
  new TimeChart(board, { title: "CPU", series: [{ name: "cpu", label: "busy", color: "s1" }, { name: "leased", label: "leased", color: "s4" }], ...full }),
  new TimeChart(board, { title: "Memory", series: [{ name: "memory", label: "used", color: "s2" }], ...full }),
  new TimeChart(board, { title: "Actors", series: [{ name: "actors", label: "on this node", color: "s3" }], format: (value) => decimal(value, 1), most: 4 }),
];
let gpu = false;
const update = chartBoard(`${path}/history`, charts);

poll(async () => {
  let row;
  try {
    row = await get(path);
  } catch (error) {
    if (error.status === 404) {
      live(true);
      byId("state").replaceChildren(pill("gone"));
      notice(byId("problem"), `${error.message}; what was known of it lately is below.`);
      return;
    }
    throw error;
  }
  live(true);
  notice(byId("problem"), "");
  byId("title").textContent = row.label || row.name;
  document.title = `${row.label || row.name} · PARL monitor`;
  byId("lost").hidden = row.lost_at === null;
  byId("lost-text").textContent = row.lost_at === null ? "" : `Lost ${moment(row.lost_at)}, with ${plural(row.actors, "actor")}: ${row.cause}`;
  byId("state").replaceChildren(pill(row.state));
  facts(byId("facts"), [
    ["CPUs leased", bar(row.cpus ? row.cpus_used / row.cpus : 0, `${decimal(row.cpus_used)} of ${decimal(row.cpus)}`)],
    ["GPUs leased", row.gpus ? bar(row.gpus_used / row.gpus, `${decimal(row.gpus_used)} of ${decimal(row.gpus)}`) : null],
    ["CPU busy", percent(row.cpu_busy)],
    ["Load", decimal(row.load)],
    ["Memory", row.memory_total ? `${bytes(row.memory_used)} of ${bytes(row.memory_total)}` : null],
    ["Actors", count(row.actors)],
    ["Address", row.address],
    ["Heard", `${duration(row.silent_s)} ago`],
    ["Labels", row.labels.join(", ")],
    ["Id", h("code", {}, row.node_id)],
  ]);
  showGpus(row.devices);
}, 2000);

byId("acknowledge").addEventListener("click", async () => {
  try {
    await post(`${path}/acknowledge`);
    location.assign("/nodes");
  } catch (error) {
    notice(byId("problem"), error.status === 401 ? "Sign in to acknowledge the loss of a node." : error.message);
  }
});

function showGpus(devices) {
  byId("gpus").hidden = !devices.length;
  byId("gpu-list").replaceChildren(
    h("ul", { class: "plain" }, ...devices.map((one) =>
      h("li", { class: "gpu" }, h("b", {}, `GPU ${one.name}`), h("span", { class: "muted" }, one.model),
        one.busy === null ? h("span", { class: "muted" }, "not measured") : bar(one.busy, `${percent(one.busy)} busy`),
        one.memory_total ? bar(one.memory_used / one.memory_total, `${bytes(one.memory_used)} of ${bytes(one.memory_total)}`) : ""))),
  );
  if (devices.some((one) => one.busy !== null) && !gpu) {
    gpu = true;
    charts.push(new TimeChart(board, { title: "GPU", series: [{ name: "gpu", label: "busy", color: "s5" }, { name: "gpu_memory", label: "memory", color: "s4" }], ...full }));
    board.insertBefore(charts[3].card, charts[2].card);
    update().catch(() => {});
  }
}

poll(update, 3000, { sign: false });
const within = { fixed: { node: id }, inAddress: false, search: false, perPage: 25, rowHead: 1 };
new DataTable(byId("actors"), {
  ...within, path: "/api/v1/actors", noun: "actor", none: "No actor runs on this node.", sortedBy: ["age", "asc"],
  columns: actorColumns.filter((column) => column.label !== "Node"),
});
new DataTable(byId("deaths"), {
  ...within, path: "/api/v1/deaths", noun: "death", none: "No actor was lost on this node.", sortedBy: ["at", "desc"],
  columns: deathColumns.filter((column) => column.label !== "Node"),
});
