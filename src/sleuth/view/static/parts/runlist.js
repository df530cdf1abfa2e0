// List of runs with colour, live status and progress.

import { h } from "../element.js";
import { short } from "../number.js";
import { liveness } from "./liveness.js";

/** Runs with check boxes; `chosen(ids)` is called with the selection. */
export function runList(runs, selected, chosen) {
  const toggle = (id, on) => chosen(on ? [...selected, id] : selected.filter((each) => each !== id));
  const items = runs.map((run) => item(run, selected.includes(run.id), toggle, () => chosen([run.id])));
  return h("ul", { class: "runlist" }, items);
}

function item(run, checked, toggle, alone) {
  const box = h("input", {
    type: "checkbox",
    checked,
    "aria-label": run.name,
    style: { "accent-color": `var(--c${run.place % 6})` },
    onchange: (event) => toggle(run.id, event.target.checked),
  });
  return h(
    "li",
    { class: checked ? "run on" : "run" },
    box,
    h("button", { class: "name clip", title: `${run.id}: show only this run`, onclick: alone }, run.name),
    h("span", { class: "quiet figure" }, liveness(run)),
    h("span", { class: "about quiet clip" }, about(run)),
  );
}

function about(run) {
  const steps = run.steps_planned
    ? `${short(run.steps)} of ${short(run.steps_planned)} steps`
    : `${short(run.steps)} steps`;
  return [steps, run.algorithm, run.model && run.model.split("/").at(-1)].filter(Boolean).join(" · ");
}
