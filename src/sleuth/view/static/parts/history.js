// One question over the steps, with all samples of each step.

import { h } from "../element.js";
import { counted, short } from "../number.js";
import { changed } from "../route.js";
import { verdict } from "../verdict.js";
import { table } from "./table.js";

const HEADS = [["step", "figure"], ["reward", "figure"], "", ["searches", "figure"], "answers"];

/** Table of steps; each sample links to its conversation. */
export function questionHistory(question, at) {
  const head = h(
    "header",
    { class: "heading" },
    h("h1", { dir: "auto" }, question.question || question.question_id),
    h(
      "p",
      { class: "quiet" },
      `in ${counted(question.steps.length, "step")} · expected: `,
      h("span", { dir: "auto" }, question.golden_answers.join(" · ")),
    ),
  );
  const left = question.left_out
    ? h("p", { class: "quiet" }, `${counted(question.left_out, "more sample")} not shown.`)
    : null;
  const rows = question.steps.map((step) => row(step, at));
  return [head, table("wide oversteps", HEADS, rows), left];
}

function row(step, at) {
  return h(
    "tr",
    {},
    h("th", { class: "figure" }, short(step.step)),
    h("td", { class: "figure" }, short(step.reward)),
    h("td", {}, meter(step.reward)),
    h("td", { class: "figure" }, short(step.searches)),
    h(
      "td",
      {},
      h(
        "div",
        { class: "samples" },
        step.rows.map((sample) => chip(sample, at)),
      ),
    ),
  );
}

function chip(sample, at) {
  const [word, tone] = verdict(sample);
  return h(
    "a",
    {
      class: `chip ${tone}`,
      href: changed({ at: sample.at, view: null }),
      title: `${word}, reward ${short(sample.reward)}`,
      "aria-current": sample.at === at ? "true" : null,
      dir: "auto",
    },
    sample.answer ?? "no answer",
  );
}

function meter(value) {
  const width = Math.max(0, Math.min(1, value ?? 0));
  return h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${100 * width}%` } }));
}
