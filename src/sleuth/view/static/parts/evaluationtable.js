// Table of evaluations; two can be selected for comparison.

import { h } from "../element.js";
import { short } from "../number.js";
import { changed, link } from "../route.js";
import { liveness } from "./liveness.js";
import { figure } from "./results.js";
import { table } from "./table.js";
import { whisker } from "./whisker.js";

const HEADS = ["", "evaluation", ["questions", "figure"], ["EM", "figure"], "95% interval", "sets", ""];

/** The table; `open` is the id shown below, `picked` are selected, `pick(id, on)` is called on a change. */
export function evaluationTable(evaluations, open, picked, pick) {
  const rows = evaluations.map((each) => row(each, each.id === open, picked.includes(each.id), pick));
  return [heading(picked), table("wide choices", HEADS, rows)];
}

function heading([first, second]) {
  const ready = second !== undefined;
  const address = { class: "button", href: ready ? link("compare", { first, second }) : null };
  return h(
    "div",
    { class: "tools above" },
    h("h1", {}, "Evaluations"),
    h("span", { class: "end quiet" }, ready ? "" : "select two to compare them question by question"),
    h("a", { ...address, "aria-disabled": ready ? null : "true" }, "Compare"),
  );
}

function row(each, open, checked, pick) {
  const box = { type: "checkbox", "aria-label": `Compare ${each.name}`, checked };
  const address = { href: changed({ evaluation: each.id }), "aria-current": open ? "true" : null };
  return h(
    "tr",
    { class: open ? "chosen" : null },
    h("td", {}, h("input", { ...box, onchange: (event) => pick(each.id, event.target.checked) })),
    h("th", {}, h("a", { ...address, title: each.title ?? each.id }, each.name)),
    h("td", { class: "figure" }, short(each.questions)),
    h("td", { class: "figure" }, figure(each.em)),
    h("td", {}, whisker(each.em)),
    h("td", { class: "quiet sets" }, each.sets.join(", ")),
    h("td", { class: "figure quiet" }, liveness(each)),
  );
}
