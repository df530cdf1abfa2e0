// Header of a trajectory: question, verdict, reward and place.

import { words } from "../curves.js";
import { h } from "../element.js";
import { counted, short } from "../number.js";
import { changed } from "../route.js";
import { STOPS, verdict } from "../verdict.js";

/** Question, verdict, expected answers and reward parts. */
export function heading(trajectory) {
  return h(
    "header",
    { class: "heading" },
    h("h1", { dir: "auto" }, trajectory.question || trajectory.question_id),
    h(
      "p",
      { class: "about" },
      badge(trajectory),
      h("span", { class: "quiet" }, standing(trajectory)),
      contexts(trajectory),
      alone(trajectory),
    ),
    answers(trajectory),
    rewards(trajectory),
  );
}

function alone({ question_id: question }) {
  return h(
    "a",
    { href: changed({ question, cursor: null, page: null }), title: `show only trajectories of ${question}` },
    "only this question",
  );
}

/** The number of segments and forks, and the roles; null for a plain trajectory. */
function contexts({ segments, forks, roles, turns }) {
  const helpers = turns.filter((turn) => turn.segment === null).length;
  const counts = [
    segments.length > 1 && `${counted(segments.length, "segment")}, ${counted(forks, "fork")}`,
    roles.length > 0 && `${roles.length === 1 ? "role" : "roles"} ${roles.join(", ")}`,
    helpers > 0 && counted(helpers, "call of the helper model", "calls of the helper model"),
  ].filter(Boolean);
  return counts.length ? h("span", { class: "quiet contexts" }, counts.join(" · ")) : null;
}

/** Verdict as a badge. */
export function badge(trajectory) {
  const [word, tone] = verdict(trajectory);
  return h("span", { class: `badge ${tone}` }, word);
}

/** Reward and its parts. */
export function rewards({ score, advantage, reward_by: by }) {
  if (!score) return null;
  const pairs = [["reward", score.total], ...Object.entries(score.parts ?? {}), ["advantage", advantage]];
  const known = pairs.filter(([, value]) => typeof value === "number");
  return h(
    "dl",
    { class: "rewards" },
    known.map(([name, value], place) =>
      h("div", { class: place ? null : "total" }, h("dt", {}, words(name)), h("dd", { class: "figure" }, short(value))),
    ),
    by && h("div", {}, h("dt", {}, "reward from"), h("dd", {}, `the ${by}`)),
  );
}

function answers({ golden_answers: golden, answer }) {
  return h(
    "dl",
    { class: "answers" },
    h("div", {}, h("dt", {}, "answer"), h("dd", { dir: "auto" }, answer ?? h("span", { class: "quiet" }, "none"))),
    h(
      "div",
      {},
      h("dt", {}, "right answer"),
      h("dd", { dir: "auto" }, golden.length ? golden.join(" · ") : h("span", { class: "quiet" }, "not known")),
    ),
  );
}

function standing({ step, group, sample, data_source: source, stop, evaluation }) {
  const place = evaluation ? [] : [`step ${step}`, `group ${group}`, `sample ${sample}`];
  return [...place, source, STOPS[stop] ?? stop].filter(Boolean).join(" · ");
}
