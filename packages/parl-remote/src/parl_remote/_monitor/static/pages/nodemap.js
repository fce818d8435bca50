// All nodes as small fields, coloured by how busy they are; a thousand of them fit on a screen.
import { empty, h } from "../lib/dom.js";
import { count, percent, plural } from "../lib/format.js";

const STEPS = 8;

export class NodeMap {
  constructor(parent, note) {
    this.note = note;
    this.by = "cpu";
    this.cells = new Map();
    this.grid = h("div", { class: "map", role: "group", "aria-label": "Nodes by load; use the arrow keys to move" });
    this.none = h("div");
    const scale = h("div", { class: "scale", "aria-hidden": "true" }, "idle", ...Array.from({ length: STEPS }, (_, i) => h("i", { class: `heat${i}` })), "full", h("i", { class: "unknown" }), "unknown");
    parent.append(this.grid, this.none, scale);
    this.grid.addEventListener("keydown", (event) => this.move(event));
  }

  colourBy(by) {
    this.by = by;
    if (this.data) this.show(this.data);
  }

  show(data) {
    this.data = data;
    const seen = new Set();
    this.grid.dataset.size = data.nodes.length > 300 ? "small" : data.nodes.length > 48 ? "medium" : "large";
    for (const row of data.nodes) {
      const node = Object.fromEntries(data.columns.map((name, i) => [name, row[i]]));
      seen.add(node.node_id);
      this.cell(node);
    }
    for (const [id, cell] of this.cells) {
      if (!seen.has(id)) {
        cell.remove();
        this.cells.delete(id);
      }
    }
    const first = this.grid.firstElementChild;
    if (first && !this.grid.querySelector('[tabindex="0"]')) first.tabIndex = 0;
    const lost = data.nodes.filter((row) => row[data.columns.indexOf("state")] === "lost").length;
    this.note.textContent = plural(data.nodes.length - lost, "node") + (lost ? ` · ${count(lost)} lost` : "");
    this.none.replaceChildren(...(data.nodes.length ? [] : [empty("No node has joined.")]));
  }

  cell(node) {
    let cell = this.cells.get(node.node_id);
    if (!cell) {
      cell = h("a", { href: `/nodes/${encodeURIComponent(node.node_id)}`, tabindex: "-1" }, h("span", {}, node.name), h("b", {}));
      this.cells.set(node.node_id, cell);
      this.grid.append(cell);
    }
    const value = node.state === "lost" ? null : this.by === "leased" ? (node.cpus ? node.cpus_used / node.cpus : null) : node[this.by];
    const heat = value === null ? "unknown" : `heat${Math.min(STEPS - 1, Math.floor(value * STEPS))}`;
    const name = `${heat} ${node.state}`;
    if (cell.className !== name) cell.className = name;
    const text = node.state === "lost" ? "lost" : percent(value);
    if (cell.lastChild.textContent !== text) cell.lastChild.textContent = text;
    const label = `${node.name}: ${this.by} ${text}, ${plural(node.actors, "actor")}${node.state === "alive" ? "" : `, ${node.state}`}`;
    if (cell.title !== label) {
      cell.title = label;
      cell.setAttribute("aria-label", label);
    }
  }

  move(event) {
    const cells = [...this.grid.children];
    const at = cells.indexOf(document.activeElement);
    if (at < 0) return;
    const top = cells[at].offsetTop;
    const columns = Math.max(1, cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: cells.length - 1 - at }[event.key];
    if (step === undefined || top === undefined) return;
    event.preventDefault();
    const next = cells[Math.min(cells.length - 1, Math.max(0, at + step))];
    cells[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
