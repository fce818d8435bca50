// The cluster at a glance.
import { get, live, poll } from "../lib/api.js";
import { TimeChart } from "../lib/chart.js";
import { byId, empty, h, pill, segmented } from "../lib/dom.js";
import { bytes, count, decimal, duration, moment, percent, plural, rate } from "../lib/format.js";
import { chartBoard } from "./charts.js";
import { link } from "./columns.js";
import { NodeMap } from "./nodemap.js";

const share = percent;
const board = byId("charts");
const charts = [
  new TimeChart(board, { title: "CPU", series: [{ name: "cpu", label: "busy", color: "s1" }, { name: "leased", label: "leased", color: "s4" }], format: share, most: 1, fixed: true }),
  new TimeChart(board, { title: "Memory", series: [{ name: "memory", label: "used", color: "s2" }], format: share, most: 1, fixed: true }),
  new TimeChart(board, { title: "Calls per second", series: [{ name: "calls", label: "all actors", color: "s3" }], format: rate, most: 1 }),
  new TimeChart(board, {
    title: "Actors",
    series: [{ name: "actors", label: "running", color: "s1" }, { name: "waiting", label: "waiting", color: "s4" }],
    format: (value) => decimal(value, 1), most: 4,
  }),
];
let gpu = null;
const updateCharts = chartBoard("/api/v1/cluster/history", charts);

const map = new NodeMap(byId("map"), byId("map-note"));
segmented(byId("map-by"), [["cpu", "CPU"], ["memory", "Memory"], ["gpu", "GPU"], ["leased", "Leased"]], "cpu", (by) => map.colourBy(by));

function tile(label, value, note, part) {
  const fill = part === undefined || part === null ? null : h("i");
  if (fill) fill.style.width = `${Math.round(Math.min(1, part) * 100)}%`;
  return h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "note" }, note || " "), h("div", { class: "track", "aria-hidden": "true" }, fill));
}

function showTotals({ totals, cluster, deaths }) {
  const states = Object.entries(totals.states).map(([state, number]) => `${count(number)} ${state}`).join(", ");
  const hour = deaths.filter((death) => !death.expected && death.at > Date.now() / 1000 - 3600).length;
  const tiles = [
    tile("Nodes", count(totals.nodes), totals.nodes_lost ? `${count(totals.nodes_lost)} lost` : plural(totals.drivers, "driver")),
    tile("CPUs leased", decimal(totals.cpus_used), `of ${decimal(totals.cpus)} · ${percent(totals.cpu_busy)} busy`, totals.cpus ? totals.cpus_used / totals.cpus : 0),
    tile("Memory", bytes(totals.memory_used), totals.memory_total ? `of ${bytes(totals.memory_total)}` : "", totals.memory_total ? totals.memory_used / totals.memory_total : null),
    totals.gpus ? tile("GPUs leased", decimal(totals.gpus_used), `of ${decimal(totals.gpus)}${totals.gpu_busy === null ? "" : ` · ${percent(totals.gpu_busy)} busy`}`, totals.gpus_used / totals.gpus) : null,
    tile("Actors", count(totals.actors), states || "none runs"),
    tile("Waiting", count(totals.waiting), totals.waiting ? "for resources" : "no actor waits"),
    tile("Calls per second", rate(totals.calls_per_s), "answered by all actors"),
    tile("Lost lately", hour >= 8 ? "8+" : count(hour), "in the last hour"),
  ];
  byId("tiles").replaceChildren(...tiles.filter(Boolean));
  byId("about").textContent = `up for ${duration(cluster.uptime_s)}${cluster.rejected_peers ? ` · ${plural(cluster.rejected_peers, "peer")} turned away` : ""}`;
  byId("where").textContent = cluster.address;
  if (totals.gpus && !gpu) {
    gpu = new TimeChart(board, { title: "GPU", series: [{ name: "gpu", label: "busy", color: "s5" }, { name: "gpus_leased", label: "leased", color: "s4" }], format: share, most: 1, fixed: true });
    charts.push(gpu);
    board.insertBefore(gpu.card, charts[2].card);
    updateCharts().catch(() => {});
  }
}

function showWaiting(waiting, total) {
  const rows = waiting.slice(0, 8).map((one) =>
    h("li", {}, h("div", {}, h("b", {}, `${one.count > 1 ? `${one.count} × ` : ""}${one.class_name}`), ` ${one.asked}`, h("span", { class: "muted" }, ` · ${one.owner_name} · ${duration(one.since_s)}`)), h("div", { class: "muted" }, one.reason)),
  );
  const rest = total - waiting.slice(0, 8).reduce((sum, one) => sum + one.count, 0);
  byId("waiting").replaceChildren(
    rows.length ? h("ul", { class: "plain" }, ...rows, rest > 0 && rows.length ? h("li", { class: "muted" }, `and ${count(rest)} more`) : null) : empty(total ? `${plural(total, "actor")} wait for resources.` : "No actor waits for resources."),
  );
}

function showLost(lost) {
  byId("lost").hidden = !lost.length;
  byId("lost-list").replaceChildren(
    ...lost.map((one) => h("li", {}, link("nodes", one.node_id, one.label || one.name), ` ${moment(one.lost_at)}`, h("span", { class: "muted" }, ` · ${one.cause}`))),
  );
}

function showDeaths(deaths) {
  const rows = deaths.slice(0, 8).map((one) =>
    h("li", {}, h("div", {}, pill(one.kind), " ", link("deaths", one.actor_id, one.class_name), h("span", { class: "muted" }, ` · ${moment(one.at)} · ${one.node_name}`)), h("div", { class: "muted clip", title: one.text }, one.text)),
  );
  byId("deaths").replaceChildren(rows.length ? h("ul", { class: "plain" }, ...rows) : empty("No actor was lost."));
}

poll(async () => {
  const data = await get("/api/v1/cluster");
  live(data.healthy, data.reason);
  showTotals(data);
  showWaiting(data.waiting, data.totals.waiting);
  showDeaths(data.deaths);
  showLost(data.lost);
}, 2000);
poll(updateCharts, 4000, { sign: false });
poll(async () => map.show(await get("/api/v1/nodes/map")), 4000, { sign: false });
