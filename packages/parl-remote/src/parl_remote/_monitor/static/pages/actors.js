// All actors.
import { byId } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { DataTable } from "../lib/table.js";
import { actorColumns } from "./columns.js";

const states = ["busy", "idle", "starting", "stopped", "ending"];

new DataTable(byId("list"), {
  path: "/api/v1/actors",
  noun: "actor",
  filters: [{ name: "state", label: "State", options: [["", "Any state"], ...states.map((state) => [state, state[0].toUpperCase() + state.slice(1)])] }],
  also: ["node", "owner", "class"],
  sortedBy: ["age", "asc"],
  rowHead: 1,
  none: "No actor runs.",
  columns: actorColumns,
  onData: ({ states: found }) => {
    const text = Object.entries(found).map(([state, number]) => `${count(number)} ${state}`).join(" · ");
    if (byId("about").textContent !== text) byId("about").textContent = text;
  },
});
