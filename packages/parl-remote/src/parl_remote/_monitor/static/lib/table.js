// A table whose rows the server sorts, filters and pages; what is shown is in the address, so it can be shared.
//
//   new DataTable(parent, { path, columns: [{ key, label, cell, sort, number, wide }], noun, ... })
import { get, live, poll } from "./api.js";
import { empty, h } from "./dom.js";
import { count, plural } from "./format.js";

const NAMES = ["q", "sort", "order", "page", "per_page"];

export class DataTable {
  // filters: [{ name, label, options: [[value, label]] }]; fixed: query that cannot be changed; inAddress: see above
  constructor(parent, options) {
    Object.assign(this, { filters: [], fixed: {}, inAddress: true, interval: 2000, perPage: 50, search: true }, options);
    const here = new URLSearchParams(this.inAddress ? location.search : "");
    this.wish = {};
    for (const name of [...NAMES, ...this.filters.map((one) => one.name), ...(this.also || [])]) {
      if (here.get(name)) this.wish[name] = here.get(name);
    }
    this.build(parent);
    this.refresh = poll(() => this.load(), this.interval, { sign: this.inAddress });
    addEventListener("popstate", () => this.inAddress && location.reload());
  }

  build(parent) {
    this.tools = h("div", { class: "tools" });
    if (this.search) {
      const field = h("input", {
        type: "search", placeholder: "Filter…  (press /)", "aria-label": `Filter ${this.noun}s`, value: this.wish.q || "",
      });
      let timer = null;
      field.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(() => this.change({ q: field.value.trim(), page: "" }), 200);
      });
      this.tools.append(field);
    }
    for (const filter of this.filters) this.tools.append(this.choice(filter));
    this.note = h("span", { class: "muted count", role: "status" });
    this.tools.append(h("div", { class: "spacer" }), this.note);
    this.headRow = h("tr");
    this.rows = h("tbody");
    this.nothing = h("div");
    this.pager = h("nav", { class: "pager", "aria-label": "Pages of the table" });
    const table = h("table", {}, h("thead", {}, this.headRow), this.rows);
    parent.append(this.tools, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.noun }, table), this.nothing, this.pager);
    this.heads();
  }

  choice({ name, label, options }) {
    const select = h("select", { "aria-label": label }, ...options.map(([value, text]) => h("option", { value }, text)));
    select.value = this.wish[name] || "";
    select.addEventListener("change", () => this.change({ [name]: select.value, page: "" }));
    return select;
  }

  heads() {
    this.headRow.replaceChildren(
      ...this.columns.map((column) => {
        const head = h("th", { scope: "col", class: classesOf(column) });
        if (!column.sort) head.append(column.label);
        else head.append(h("button", { type: "button", onclick: () => this.sortBy(column) }, column.label, h("i", { "aria-hidden": "true" })));
        return head;
      }),
    );
    this.mark();
  }

  // Says which column is sorted by; the buttons stay, and with them the focus.
  mark() {
    const [sort, order] = this.sorting();
    this.columns.forEach((column, i) => {
      if (!column.sort) return;
      const now = column.sort === sort ? (order === "desc" ? "descending" : "ascending") : "none";
      this.headRow.cells[i].setAttribute("aria-sort", now);
    });
  }

  sorting() {
    return this.wish.sort ? [this.wish.sort, this.wish.order || "asc"] : this.sortedBy || ["", "asc"];
  }

  sortBy(column) {
    const [sort, order] = this.sorting();
    const first = column.number ? "desc" : "asc";
    const next = column.sort === sort ? (order === "asc" ? "desc" : "asc") : first;
    this.change({ sort: column.sort, order: next, page: "" });
  }

  change(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value) this.wish[name] = value;
      else delete this.wish[name];
    }
    if (this.inAddress) {
      const query = new URLSearchParams(this.wish).toString();
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    }
    this.mark();
    this.changed = true;
    this.refresh();
  }

  async load() {
    do {
      this.changed = false;
      const query = new URLSearchParams({ per_page: this.perPage, ...this.wish, ...this.fixed });
      const data = await get(`${this.path}?${query}`);
      if (this.inAddress) live(true);
      if (!this.changed) this.show(data);
    } while (this.changed);
  }

  show(data) {
    const fresh = data.rows.map((row) =>
      h(
        "tr",
        {},
        ...this.columns.map((column, i) => {
          const isHead = i === (this.rowHead ?? 0);
          return h(isHead ? "th" : "td", { class: classesOf(column), scope: isHead && "row" }, column.cell(row));
        }),
      ),
    );
    this.put(fresh);
    const matching = data.total === data.all ? plural(data.all, this.noun) : `${count(data.total)} of ${plural(data.all, this.noun)}`;
    if (this.note.textContent !== matching) this.note.textContent = matching;
    const none = data.all && !data.total ? `No ${this.noun} matches.` : this.none || `No ${this.noun}s.`;
    this.nothing.replaceChildren(...(data.rows.length ? [] : [empty(none)]));
    this.pages(data);
    this.onData?.(data);
  }

  // Replaces only rows that differ, so that focus and selection survive an update.
  put(fresh) {
    const old = [...this.rows.children];
    fresh.forEach((row, i) => {
      if (!old[i]) this.rows.append(row);
      else if (old[i].outerHTML !== row.outerHTML || row.querySelector("canvas")) {
        if (!old[i].contains(document.activeElement)) old[i].replaceWith(row);
        else [...row.cells].forEach((cell, n) => {
          const before = old[i].cells[n];
          if (before && !before.contains(document.activeElement)) before.replaceWith(cell);
        });
      }
    });
    old.slice(fresh.length).forEach((row) => row.remove());
  }

  pages({ page, pages }) {
    const to = (number, label, text) =>
      h("button", { type: "button", "aria-label": label, disabled: number < 1 || number > pages || number === page, onclick: () => this.change({ page: number > 1 ? String(number) : "" }) }, text);
    const key = `${page}/${pages}`;
    if (this.pager.dataset.key === key) return;
    this.pager.dataset.key = key;
    this.pager.hidden = pages < 2;
    this.pager.replaceChildren(
      to(1, "First page", "«"), to(page - 1, "Page before", "‹"),
      h("span", {}, `Page ${count(page)} of ${count(pages)}`),
      to(page + 1, "Next page", "›"), to(pages, "Last page", "»"),
    );
  }
}

function classesOf(column) {
  return ["number", "wide", "minor"].filter((name) => column[name]).join(" ") || null;
}
