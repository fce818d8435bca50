// The charts of a page: fed together, for a span of time that the reader chooses.
import { get } from "../lib/api.js";
import { segmented } from "../lib/dom.js";

const SPANS = [["300", "5 min"], ["1800", "30 min"], ["21600", "6 h"], ["86400", "24 h"]];

export function chartBoard(path, charts, spans = SPANS) {
  let chosen = spans[0][0];
  async function update() {
    const data = await get(`${path}?window=${chosen}`);
    for (const chart of charts) chart.set(data);
  }
  segmented(document.getElementById("window"), spans, chosen, (value) => {
    chosen = value;
    update().catch(() => {});
  });
  return update;
}
