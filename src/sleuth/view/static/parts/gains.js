// Paired differences of two evaluations by data set.

import { h } from "../element.js";
import { share, short, signed } from "../number.js";
import { figure } from "./results.js";
import { table } from "./table.js";
import { around, whisker } from "./whisker.js";

/** Table of one measure; significant gains are coloured, unless the measure is a count. */
export function gains(comparison, measure) {
  const sets = Object.entries(comparison.sets).map(([name, figures]) => [name, figures.questions, figures[measure]]);
  const whole = [
    ["mean over the sets", null, comparison.mean?.[measure]],
    ["all questions", comparison.questions, comparison.all?.[measure]],
  ];
  const lines = [...sets, ...(sets.length > 1 ? whole : [])].filter(([, , difference]) => difference);
  const scale = around(lines.map(([, , difference]) => difference.gain));
  const plain = comparison.counts.includes(measure);
  const names = ["questions", comparison.first.name, comparison.second.name, "gain"];
  const heads = ["set", ...names.map((name) => [name, "figure"]), "paired, 95% interval"];
  const rows = lines.map(([name, questions, { first, second, gain }], place) => {
    const tone = plain ? "c0" : direction(gain);
    return h(
      "tr",
      { class: place >= sets.length ? "total" : null },
      h("th", {}, name),
      h("td", { class: "figure" }, short(questions)),
      h("td", { class: "figure" }, figure(first)),
      h("td", { class: "figure" }, figure(second)),
      h(
        "td",
        { class: `figure ${tone === "c0" || tone === "quiet" ? "" : tone}` },
        signed(gain.value),
        h("span", { class: "bounds" }, ` ${share(gain.low)} to ${share(gain.high)}`),
      ),
      h("td", {}, whisker(gain, ...scale, tone)),
    );
  });
  return table("wide results", heads, rows);
}

function direction({ low, high }) {
  if (low > 0) return "good";
  return high < 0 ? "bad" : "quiet";
}
