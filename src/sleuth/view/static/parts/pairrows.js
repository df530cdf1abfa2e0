// The questions of a comparison with both answers, filtered by change.

import { h } from "../element.js";
import { short } from "../number.js";
import { change, changed } from "../route.js";
import { menu, segments } from "./choice.js";
import { empty } from "./state.js";

export const PAGE = 50; // questions per page
const CHANGES = { won: ["▲", "good"], lost: ["▼", "bad"], same: ["=", "quiet"], unknown: ["?", "quiet"] };

/** Settings that reset the list. */
export function anew() {
  return { from: null, a: null, b: null };
}

/** Whether a row is the open one. */
export function isOpen(row, query) {
  return row.first.at === query.get("a") && row.second.at === query.get("b");
}

/** Heading, rows and pager. */
export function pairRows(answer, query) {
  const items = answer.rows.map((row) => h("li", {}, item(row, isOpen(row, query))));
  const none = () => empty("No questions", "No question changed this way; show all instead.");
  return [head(answer, query), items.length ? h("ol", { class: "rows pairs" }, items) : none(), pager(answer, query)];
}

function head({ tally, counts, measure, sets, show }, query) {
  const all = Object.values(tally).reduce((sum, each) => sum + each, 0);
  const [more, less] = counts.includes(measure) ? ["higher", "lower"] : ["better", "worse"];
  const figures = { all: ["all", all], won: [more, tally.won], lost: [less, tally.lost], same: ["same", tally.same] };
  const options = Object.entries(figures).map(([key, [words, count]]) => [key, `${words} ${short(count)}`]);
  const names = Object.keys(sets);
  const offered = [["", "all sets"], ...names.map((name) => [name, name])];
  return h(
    "header",
    { class: "tools foundhead" },
    segments("Show", options, show, (each) => change({ show: each === "all" ? null : each, ...anew() })),
    names.length > 1 && menu("Set", offered, query.get("source"), (source) => change({ source, ...anew() })),
  );
}

function item({ question, change: changedTo, first, second }, open) {
  const [sign, tone] = CHANGES[changedTo] ?? CHANGES.unknown;
  const said = ({ answer }) => h("span", { class: "clip", dir: "auto" }, answer ?? "no answer");
  return h(
    "a",
    { class: "row", href: changed({ a: first.at, b: second.at }), "aria-current": open ? "true" : null },
    h("span", { class: `sign ${tone}`, title: changedTo }, sign),
    h("span", { class: "question clip", dir: "auto" }, question),
    h("span", { class: "reward figure" }, `${short(first.value)} → ${short(second.value)}`),
    h("span", { class: "meta quiet" }, said(first), h("span", {}, "→"), said(second)),
  );
}

function pager({ total }, query) {
  const from = Number(query.get("from") ?? 0);
  if (total <= PAGE) return null;
  const step = (words, to, off) =>
    h("button", { class: "button", disabled: off, onclick: () => change({ from: to || null }) }, words);
  const shown = `${from + 1}–${Math.min(from + PAGE, total)} of ${short(total)}`;
  return h(
    "footer",
    { class: "pager" },
    step("Previous", Math.max(0, from - PAGE), from === 0),
    h("span", { class: "quiet figure" }, shown),
    step("Next", from + PAGE, from + PAGE >= total),
  );
}
