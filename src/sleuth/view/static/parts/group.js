// The samples of a group side by side.

import { h } from "../element.js";
import { short } from "../number.js";
import { changed } from "../route.js";
import { conversation } from "./conversation.js";
import { badge, rewards } from "./heading.js";
import { unread } from "./rows.js";

/** One column per sample; the one at `at` is highlighted. */
export function groupColumns(group, at) {
  const mean = average(group.samples.map(({ reward }) => reward));
  const head = h(
    "header",
    { class: "heading" },
    h("h1", { dir: "auto" }, group.question || group.question_id),
    h(
      "p",
      { class: "quiet" },
      `step ${group.step} · group ${group.group} · mean reward ${short(mean)} of ${group.samples.length} · expected: `,
      h("span", { dir: "auto" }, group.golden_answers.join(" · ")),
    ),
  );
  return [
    head,
    group.broken.map(unread),
    h(
      "div",
      { class: "columns", tabindex: 0, "aria-label": "Samples" },
      group.samples.map((sample) => column(sample, at)),
    ),
  ];
}

function column(sample, at) {
  const open = h("a", { href: changed({ at: sample.at, view: null }) }, `sample ${sample.sample}`);
  return h(
    "article",
    { class: sample.at === at ? "column chosen" : "column" },
    h("header", {}, open, badge(sample), rewards(sample)),
    conversation(sample, false),
  );
}

function average(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
