// One question in two evaluations, side by side.

import { ask } from "../api.js";
import { h } from "../element.js";
import { conversation } from "./conversation.js";
import { badge, rewards } from "./heading.js";

/** Both conversations, or a note where one is missing. */
export async function pair(sides, signal) {
  const read = await Promise.all(
    sides.map(({ id, at }) => (at ? ask("trajectory", { evaluation: id, at, tokens: 0 }, signal) : null)),
  );
  const { question, golden_answers: golden } = read.find(Boolean) ?? { question: "", golden_answers: [] };
  const columns = sides.map(({ name }, place) => column(name, read[place]));
  const head = h(
    "header",
    { class: "heading" },
    h("h1", { dir: "auto" }, question),
    h("p", { class: "quiet" }, "right: ", h("span", { dir: "auto" }, golden.join(" · "))),
  );
  return [head, h("div", { class: "columns two" }, columns)];
}

function column(name, trajectory) {
  if (!trajectory)
    return h(
      "article",
      { class: "column" },
      h("header", {}, name),
      h("p", { class: "quiet" }, "Not asked in this evaluation."),
    );
  return h(
    "article",
    { class: "column" },
    h("header", {}, h("strong", {}, name), badge(trajectory), rewards(trajectory)),
    conversation(trajectory, false),
  );
}
