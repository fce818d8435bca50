// Lines over time on a canvas: axes, areas, a cross-hair for mouse and arrow keys, a legend with the latest values.
//
//   const chart = new TimeChart(parent, { title, series: [{ name, label, color }], format, most })
//   chart.set({ t: [seconds], name: [value or null] })
import { clock } from "./format.js";
import { h } from "./dom.js";
import { color, onTheme } from "./theme.js";

const HEIGHT = 168;
const PAD = { top: 10, right: 12, bottom: 22, left: 58 };
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600];

export class TimeChart {
  // most: the axis reaches at least so far (1 for shares); limit: a line of its own; ago: label times before the end
  constructor(parent, { title, series, format, most = 0, limit = null, ago = false, fixed = false }) {
    Object.assign(this, { title, series, format, most, limit, ago, fixed });
    this.data = { t: [] };
    this.at = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": title });
    this.legend = h("div", { class: "legend" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h("div", { class: "plot" }, this.canvas, this.tip);
    this.card = h("figure", { class: "card chart" }, h("figcaption", {}, h("h2", {}, title), this.legend), this.box);
    parent.append(this.card);
    this.ink = this.canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(this.box);
    onTheme(() => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(this.indexAt(event.offsetX)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  set(data) {
    this.data = data;
    if (this.at !== null && this.at >= data.t.length) this.at = null;
    this.describe();
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const last = this.data.t.length - 1;
    if (step === undefined || last < 0) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(0, (this.at ?? last + (step < 0 ? 1 : 0)) + step)));
  }

  point(index) {
    this.at = index;
    this.draw();
  }

  indexAt(x) {
    const { t } = this.data;
    if (!t.length || !this.scale) return null;
    const wanted = this.scale.start + ((x - PAD.left) / this.scale.width) * (this.scale.end - this.scale.start);
    let best = 0;
    for (let i = 1; i < t.length; i += 1) if (Math.abs(t[i] - wanted) < Math.abs(t[best] - wanted)) best = i;
    return best;
  }

  describe() {
    const parts = this.series.map(({ name, label, color: ink }) => {
      const value = (this.data[name] || []).findLast((one) => one !== null);
      const text = value === undefined ? "–" : this.format(value);
      return [`${label} ${text}`, h("span", { class: "key" }, h("i", { class: ink }), `${label} `, h("b", {}, text))];
    });
    this.legend.replaceChildren(...parts.map(([, element]) => element));
    this.canvas.setAttribute("aria-label", `${this.title}: ${parts.map(([text]) => text).join(", ")}`);
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== HEIGHT * ratio) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = HEIGHT * ratio;
    }
    const { ink } = this;
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.clearRect(0, 0, width, HEIGHT);
    ink.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    this.measure(width);
    this.axes();
    for (const one of this.series) this.line(one);
    if (this.limit !== null) this.limitLine();
    this.cross();
    if (!this.data.t.length) this.nothing(width);
  }

  measure(width) {
    const { t } = this.data;
    const values = this.series.flatMap(({ name }) => (this.data[name] || []).filter((value) => value !== null));
    const highest = Math.max(this.most, this.limit ?? 0, ...values.slice(-5000));
    const top = this.fixed ? this.most : niceTop(highest, this.format.binary);
    const end = t.length ? t[t.length - 1] : 1;
    const start = t.length > 1 ? t[0] : end - 60;
    this.scale = { start, end, top, width: width - PAD.left - PAD.right, height: HEIGHT - PAD.top - PAD.bottom };
  }

  x(at) {
    const { start, end, width } = this.scale;
    return PAD.left + ((at - start) / (end - start || 1)) * width;
  }

  y(value) {
    return PAD.top + (1 - Math.min(value, this.scale.top) / this.scale.top) * this.scale.height;
  }

  axes() {
    const { ink } = this;
    const { start, end, top, width } = this.scale;
    ink.strokeStyle = color("grid");
    ink.fillStyle = color("muted");
    ink.lineWidth = 1;
    ink.textBaseline = "middle";
    ink.textAlign = "right";
    for (let i = 0; i <= 4; i += this.data.t.length ? 2 : 4) {
      const y = Math.round(this.y((top * i) / 4)) + 0.5;
      ink.beginPath();
      ink.moveTo(PAD.left, y);
      ink.lineTo(PAD.left + width, y);
      ink.stroke();
      ink.fillText(this.format((top * i) / 4).replace(/\.0(?= )/, ""), PAD.left - 8, y);
    }
    if (!this.data.t.length) return;
    const span = SPANS.find((one) => (end - start) / one <= Math.max(2, width / 90)) || 86400;
    ink.textAlign = "center";
    ink.textBaseline = "alphabetic";
    const zone = this.ago ? end : new Date(end * 1000).getTimezoneOffset() * 60;
    for (let at = Math.ceil((start - zone) / span) * span + zone; at <= end; at += span) {
      const x = this.x(at);
      const text = this.ago ? (at === end ? "end" : `−${Math.round(end - at)} s`) : clock(at, span < 60);
      if (x > PAD.left + 12 && x < PAD.left + width - 10) ink.fillText(text, x, HEIGHT - 6);
    }
  }

  line({ name, color: hue }) {
    const { t } = this.data;
    const values = this.data[name] || [];
    const { ink } = this;
    const gap = typicalStep(t) * 4;
    const runs = [];
    let run = [];
    t.forEach((at, i) => {
      const value = values[i];
      const broken = value === null || value === undefined || (run.length && at - t[run[run.length - 1]] > gap);
      if (broken && run.length) {
        runs.push(run);
        run = [];
      }
      if (value !== null && value !== undefined) run.push(i);
    });
    if (run.length) runs.push(run);
    const paint = color(hue);
    for (const points of runs) {
      ink.beginPath();
      points.forEach((i, n) => ink[n ? "lineTo" : "moveTo"](this.x(t[i]), this.y(values[i])));
      ink.strokeStyle = paint;
      ink.lineWidth = 1.75;
      ink.lineJoin = "round";
      ink.stroke();
      if (points.length === 1) {
        ink.fillStyle = paint;
        ink.fillRect(this.x(t[points[0]]) - 1.5, this.y(values[points[0]]) - 1.5, 3, 3);
      }
      ink.lineTo(this.x(t[points[points.length - 1]]), this.y(0));
      ink.lineTo(this.x(t[points[0]]), this.y(0));
      ink.globalAlpha = this.series.length > 1 ? 0.07 : 0.13;
      ink.fillStyle = paint;
      ink.fill();
      ink.globalAlpha = 1;
    }
  }

  limitLine() {
    const { ink } = this;
    const y = this.y(this.limit);
    ink.strokeStyle = ink.fillStyle = color("bad");
    ink.setLineDash([5, 4]);
    ink.beginPath();
    ink.moveTo(PAD.left, y);
    ink.lineTo(PAD.left + this.scale.width, y);
    ink.stroke();
    ink.setLineDash([]);
    ink.textAlign = "left";
    ink.fillText(`limit ${this.format(this.limit)}`, PAD.left + 6, y + (y > PAD.top + 14 ? -6 : 13));
  }

  cross() {
    const at = this.at === null ? undefined : this.data.t[this.at];
    this.tip.hidden = at === undefined;
    if (at === undefined) return;
    const { ink } = this;
    const x = this.x(at);
    ink.strokeStyle = color("muted");
    ink.lineWidth = 1;
    ink.beginPath();
    ink.moveTo(x, PAD.top);
    ink.lineTo(x, HEIGHT - PAD.bottom);
    ink.stroke();
    const rows = this.series.map(({ name, label, color: hue }) => {
      const value = (this.data[name] || [])[this.at];
      if (value === null || value === undefined) return null;
      ink.fillStyle = color(hue);
      ink.beginPath();
      ink.arc(x, this.y(value), 3.5, 0, 7);
      ink.fill();
      return h("div", {}, h("i", { class: hue }), `${label} `, h("b", {}, this.format(value)));
    });
    const when = this.ago ? `${Math.round(this.data.t[this.data.t.length - 1] - at)} s before the end` : clock(at);
    this.tip.replaceChildren(h("div", { class: "muted" }, when), ...rows.filter(Boolean));
    const left = x + 14 + this.tip.offsetWidth > this.box.clientWidth ? x - 14 - this.tip.offsetWidth : x + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  nothing(width) {
    this.ink.fillStyle = color("muted");
    this.ink.textAlign = "center";
    this.ink.fillText("no numbers yet", PAD.left + (width - PAD.left - PAD.right) / 2, HEIGHT / 2);
  }
}

// A small line for table cells.
export function spark(values, hue = "s1") {
  const width = 96;
  const height = 24;
  const canvas = h("canvas", { class: "spark", width: width * 2, height: height * 2, "aria-hidden": "true" });
  const ink = canvas.getContext("2d");
  ink.scale(2, 2);
  ink.strokeStyle = color(hue);
  ink.fillStyle = color(hue);
  ink.lineWidth = 1.4;
  const kept = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  if (kept.length < 2) return canvas;
  const x = (i) => (i / (values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - Math.min(1, value) * (height - 4);
  ink.beginPath();
  kept.forEach(([i, value], n) => ink[n ? "lineTo" : "moveTo"](x(i), y(value)));
  ink.stroke();
  ink.lineTo(x(kept[kept.length - 1][0]), height);
  ink.lineTo(x(kept[0][0]), height);
  ink.globalAlpha = 0.13;
  ink.fill();
  return canvas;
}

function niceTop(value, binary) {
  if (!(value > 0)) return 1;
  const base = binary ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1;
  const scaled = value / base;
  const power = 10 ** Math.floor(Math.log10(scaled));
  const step = [1, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power >= scaled * 0.999);
  return step * power * base;
}

function typicalStep(times) {
  if (times.length < 3) return 60;
  const steps = times.slice(1).map((at, i) => at - times[i]).sort((a, b) => a - b);
  return Math.max(1, steps[Math.floor(steps.length / 2)]);
}
