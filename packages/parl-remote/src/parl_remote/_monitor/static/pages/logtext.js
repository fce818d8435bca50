// What a terminal would not show as letters is taken out: colours, titles, carriage returns that overwrite a line.

import { h } from "../lib/dom.js";

const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

export function stripped(text) {
  return text
    .replace(ESCAPES, "")
    .replace(/\r+\n/g, "\n")
    .split("\n")
    .map((line) => (line.includes("\r") ? line.slice(line.replace(/\r+$/, "").lastIndexOf("\r") + 1).replace(/\r+$/, "") : line))
    .join("\n");
}

// Text that grows at its end and is followed, cut at its beginning once it is long; a span a piece, so that one kind
// can be hidden.
export class LogView {
  constructor(element, most = 1000000) {
    Object.assign(this, { element, most, length: 0 });
  }

  append(pieces, follow) {
    for (const [text, isError] of pieces) {
      const shown = stripped(text);
      this.length += shown.length;
      this.element.append(h("span", isError ? { class: "err" } : {}, shown));
    }
    while (this.length > this.most && this.element.children.length > 1) {
      this.length -= this.element.firstElementChild.textContent.length;
      this.element.firstElementChild.remove();
    }
    if (follow && pieces.length) this.element.scrollTop = this.element.scrollHeight;
  }
}
