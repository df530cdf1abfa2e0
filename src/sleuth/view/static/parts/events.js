// Guard events, latest first.

import { words } from "../curves.js";
import { h } from "../element.js";
import { short } from "../number.js";
import { link } from "../route.js";
import { swatch } from "./sidebyside.js";
import { table } from "./table.js";

const DONE = { warn: "warned", skip: "step skipped", rollback: "rolled back", stop: "run stopped" };
const GRAVE = new Set(["rollback", "stop"]);
const MOST = 50; // events shown
const HEADS = ["run", ["step", "figure"], "guard", "action", ["value", "figure"], ["limit", "figure"], "message"];

/** Table of the events of several runs, or a note. */
export function eventTable(entries) {
  const spoken = entries.flatMap(({ run, record }) => record.events.map((event) => ({ run, event })));
  if (!spoken.length) return h("p", { class: "quiet" }, "No guard was triggered.");
  const latest = spoken.sort((first, second) => second.event.step - first.event.step).slice(0, MOST);
  return table("wide", HEADS, latest.map(row));
}

function row({ run, event }) {
  const { step } = event;
  return h(
    "tr",
    {},
    h("td", { class: "name" }, swatch(run), run.name),
    h(
      "td",
      { class: "figure" },
      h("a", { href: link("trajectories", { run: run.id, from: step, to: step }) }, short(step)),
    ),
    h("td", {}, words(event.guard)),
    h("td", { class: GRAVE.has(event.action) ? "bad" : null }, DONE[event.action] ?? event.action),
    h("td", { class: "figure" }, short(event.value)),
    h("td", { class: "figure" }, short(event.limit)),
    h("td", { class: "saw" }, event.sentence),
  );
}
