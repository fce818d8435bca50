// One actor: numbers over time, live log, stack, and its end if a visitor wants that.
import { get, live, poll, post, session } from "../lib/api.js";
import { TimeChart } from "../lib/chart.js";
import { byId, facts, h, notice, pill, segmented } from "../lib/dom.js";
import { decimal, plural } from "../lib/format.js";
import { chartBoard } from "./charts.js";
import { bytes, count, duration, link, moment, percent, rate } from "./columns.js";
import { LogView } from "./logtext.js";

const page = byId("page");
const id = page.dataset.id;
const path = `/api/v1/actors/${encodeURIComponent(id)}`;
const board = byId("charts");
const size = Object.assign((value) => bytes(value), { binary: true });
const charts = [
  new TimeChart(board, { title: "Calls per second", series: [{ name: "calls", label: "answered", color: "s3" }], format: rate, most: 1 }),
  new TimeChart(board, { title: "Busy", series: [{ name: "busy", label: "in calls", color: "s1" }, { name: "cpu", label: "CPU", color: "s4" }], format: percent, most: 1 }),
  new TimeChart(board, { title: "Memory", series: [{ name: "memory", label: "resident", color: "s2" }], format: size }),
];
const updateCharts = chartBoard(`${path}/history`, charts, [["300", "5 min"], ["1800", "30 min"], ["21600", "6 h"]]);
let ended = false;

function show(row) {
  const title = row.name ? `${row.class_name} “${row.name}”` : row.class_name;
  byId("title").textContent = title;
  document.title = `${title} · PARL monitor`;
  byId("state").replaceChildren(pill(row.state));
  facts(byId("facts"), [
    ["Running", row.running ? h("span", {}, h("code", {}, `${row.running}()`), ` for ${duration(row.running_s)}`) : "nothing"],
    ["Calls", row.calls === null ? null : `${count(row.calls)} answered${row.calls_per_s === null ? "" : `, ${rate(row.calls_per_s)}/s`}`],
    ["Waiting calls", row.queued === null ? null : count(row.queued)],
    ["Errors", row.errors === null ? null : count(row.errors)],
    ["CPU", row.cpu === null ? null : percent(row.cpu)],
    ["Memory", row.memory === null ? null : `${bytes(row.memory)}${row.memory_limit ? `, may grow by ${bytes(row.memory_limit)}` : ""}`],
    ["Holds", row.resources],
    ["Owner", row.owner_name ? h("a", { href: `/actors?owner=${encodeURIComponent(row.owner_id)}` }, row.owner_name) : row.detached ? "detached" : ""],
    ["Node", row.node_id ? link("nodes", row.node_id, row.node_name) : ""],
    ["Process", row.pid || null],
    ["Since", `${moment(row.started_at)} (${duration(row.age_s)})`],
    ["Started again", row.restarts ? plural(row.restarts, "time") : null],
    ["Id", h("code", {}, row.actor_id)],
  ]);
  byId("last-error").replaceChildren(...(row.last_error ? [h("p", { class: "notice warn" }, h("b", {}, "Last error "), row.last_error)] : []));
}

async function update() {
  try {
    show(await get(path));
    live(true);
  } catch (error) {
    if (error.status !== 410 && error.status !== 404) throw error;
    live(true);
    ended = true;
    byId("state").replaceChildren(pill("ended"));
    byId("kill").hidden = true;
    byId("stack-button").disabled = true;
    byId("problem").replaceChildren(
      h("p", { class: "notice bad", role: "status" }, `${error.message}. `, error.status === 410 ? link("deaths", id, "Why it died") : ""),
    );
  }
}
poll(update, 2000);
poll(updateCharts, 3000, { sign: false });

// -- the log ----------------------------------------------------------------------------------------------------------

const log = new LogView(byId("log"));
let position = null;
const readLog = poll(async () => {
  let chunk;
  try {
    chunk = await get(`${path}/log${position === null ? "" : `?position=${position}`}`);
  } catch (error) {
    byId("log").dataset.note = error.message;
    throw error;
  }
  if (position !== null && chunk.start > position) log.append([["\n… left out …\n", false]], false);
  position = chunk.position;
  log.append(chunk.pieces, byId("follow").checked);
  byId("log").dataset.note = log.length ? "" : "no output yet";
}, 1500, { sign: false });

segmented(byId("stream"), [["all", "All"], ["out", "stdout"], ["err", "stderr"]], "all", (value) => {
  byId("log").dataset.show = value;
  byId("log").scrollTop = byId("log").scrollHeight;
});
byId("follow").addEventListener("change", () => readLog());
byId("wrap").addEventListener("change", (event) => byId("log").classList.toggle("wrap", event.target.checked));
byId("log").addEventListener("scroll", ({ target }) => {
  byId("follow").checked = target.scrollTop + target.clientHeight > target.scrollHeight - 40;
});

// -- what changes something -------------------------------------------------------------------------------------------

async function allowed() {
  if ((await session()).signed_in) return true;
  location.assign(page.dataset.signin);
  return false;
}

byId("stack-button").addEventListener("click", async ({ target }) => {
  if (!(await allowed())) return;
  target.disabled = true;
  const out = byId("stack");
  out.hidden = false;
  out.textContent = "asking the actor…";
  try {
    const started = performance.now();
    const { text } = await post(`${path}/stack`);
    out.textContent = text;
    target.title = `took ${decimal(performance.now() - started, 0)} ms`;
  } catch (error) {
    out.textContent = error.message;
  } finally {
    target.disabled = ended;
  }
});

byId("kill").addEventListener("click", async () => {
  if (!(await allowed())) return;
  byId("confirm-text").textContent = `${byId("title").textContent} ends at once, in the middle of whatever it does. Its owner gets ActorLost.`;
  byId("confirm-problem").textContent = "";
  byId("confirm").showModal();
});
byId("confirm-kill").addEventListener("click", async (event) => {
  event.preventDefault();
  event.target.disabled = true;
  try {
    await post(`${path}/kill`, { reason: byId("reason").value });
    byId("confirm").close();
    await update();
  } catch (error) {
    byId("confirm-problem").textContent = error.message;
  } finally {
    event.target.disabled = false;
  }
});
