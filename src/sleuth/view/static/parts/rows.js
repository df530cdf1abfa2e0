// List of trajectories, grouped by question.

import { h } from "../element.js";
import { counted, share } from "../number.js";
import { changed } from "../route.js";
import { STOPS, verdict } from "../verdict.js";

/** The list; `at` is the open trajectory. */
export function rowList(rows, at, evaluation) {
  return h(
    "ol",
    { class: "rows" },
    blocks(rows).map((block) =>
      block[0].broken
        ? h("li", {}, unread(block[0].broken))
        : h(
            "li",
            {},
            heading(block[0], evaluation),
            block.map((row) => item(row, at, evaluation)),
          ),
    ),
  );
}

/** An invalid row: the server's message, without a link. */
export function unread(sentence) {
  return h("p", { class: "unread quiet", dir: "auto" }, sentence);
}

function blocks(rows) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1)?.[0];
    if (last && !last.broken && !row.broken && last.step === row.step && last.group === row.group && last.question_id === row.question_id)
      found.at(-1).push(row);
    else found.push([row]);
  }
  return found;
}

function heading(row, evaluation) {
  const place = evaluation ? row.data_source : `step ${row.step}, group ${row.group}`;
  return h(
    "div",
    { class: "asked" },
    h("span", { class: "question clip", dir: "auto" }, row.question || row.question_id),
    h("span", { class: "quiet figure" }, place),
  );
}

function item(row, at, evaluation) {
  const [word, tone] = verdict(row);
  const ended = row.stop === "answered" ? row.answer || "(empty)" : (STOPS[row.stop] ?? row.stop);
  return h(
    "a",
    { class: "row", href: changed({ at: row.at }), "data-at": row.at, "aria-current": row.at === at ? "true" : null },
    h("span", { class: `dot ${tone}`, title: word }),
    evaluation ? null : h("span", { class: "quiet figure sample", title: "sample" }, row.sample),
    h("span", { class: row.stop === "answered" ? "ended clip" : "ended clip quiet", dir: "auto" }, ended),
    row.segments > 1 && h("span", { class: "quiet figure", title: counted(row.forks, "fork") }, counted(row.segments, "segment")),
    h("span", { class: "quiet figure" }, counted(row.searches, "search", "searches")),
    h("span", { class: "reward figure" }, share(row.reward)),
  );
}
