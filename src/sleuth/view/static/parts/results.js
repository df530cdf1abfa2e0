// Figures of an evaluation by data set, with intervals.

import { h } from "../element.js";
import { share, short } from "../number.js";
import { link } from "../route.js";
import { table } from "./table.js";
import { whisker } from "./whisker.js";

/** Table by data set and, if known, by kind of question. */
export function resultTables(evaluation) {
  const { results } = evaluation;
  const sets = Object.entries(results.sets ?? {});
  const whole = [
    ["mean over the sets", { ...results.mean, questions: null }],
    ["all questions", results],
  ];
  const kinds = Object.entries(results.kinds ?? {});
  return [
    figures("set", evaluation, [...sets, ...(sets.length > 1 ? whole : [])], sets.length),
    kinds.length > 0 && figures("kind of question", evaluation, kinds, 0),
    ...(results.notes ?? []).map((note) => h("p", { class: "quiet" }, note)),
  ];
}

/** A figure with its interval. */
export function figure(estimate) {
  if (!estimate) return h("span", { class: "quiet" }, "–");
  return h(
    "span",
    { class: "figure" },
    share(estimate.value),
    h("span", { class: "bounds" }, ` ${share(estimate.low)}–${share(estimate.high)}`),
  );
}

function figures(name, evaluation, lines, linked) {
  const measures = Object.entries(evaluation.measures).filter(([key]) =>
    lines.some(([, found]) => found[key]?.value !== undefined),
  );
  const main = measures[0]?.[0];
  const drawn = main ? [`${measures[0][1]}, 95% interval`] : [];
  const heads = [name, ["questions", "figure"], ...drawn, ...measures.map(([, title]) => [title, "figure"])];
  const rows = lines.map(([title, found], place) =>
    h(
      "tr",
      { class: place >= linked && linked ? "total" : null },
      h(
        "th",
        {},
        place < linked
          ? h("a", { href: link("trajectories", { evaluation: evaluation.id, source: title }) }, title)
          : title,
      ),
      h(
        "td",
        { class: "figure" },
        short(found.questions),
        found.unusable > 0 && h("span", { class: "bad" }, ` −${found.unusable}`),
      ),
      main && h("td", {}, whisker(found[main])),
      measures.map(([key]) => h("td", { class: "figure" }, figure(found[key]))),
    ),
  );
  return table("wide results", heads, rows);
}
