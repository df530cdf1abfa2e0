// A trajectory as a conversation: thoughts, searches, results and the answer.

import { h } from "../element.js";
import { counted, share } from "../number.js";
import { segmented, segmentHeading } from "./segment.js";

const NOTES = {
  refused: "Refused: no searches were left.",
  unavailable: "The search engine gave no answer.",
};

/** The turns of a trajectory; `prompts` is whether to show the prompts. */
export function conversation({ turns, segments, failure, prompt }, prompts = true) {
  const several = segmented(segments);
  const opening = prompts && !several && prompt && h("li", { class: "turn" }, unfolding("prompt", "Prompt", prompt));
  const silence = !turns.length && h("p", { class: "quiet" }, "The model generated nothing.");
  const spoken = (turn) => h("li", { class: turn.segment === null ? "turn helper" : "turn" }, acts(turn));
  return [
    h("ol", { class: "conversation" }, opening, several ? divided(turns, segments, prompts, spoken) : turns.map(spoken)),
    silence,
    failure && h("p", { class: "bad" }, failure),
  ];
}

/** The turns in order, with a heading where the segment changes, and the new part of its prompt. */
function divided(turns, segments, prompts, spoken) {
  const seen = new Set();
  let current = null;
  return turns.map((turn) => {
    const number = turn.segment;
    if (number === null || number === current || !segments[number]) return spoken(turn);
    current = number;
    const { prompt, parent } = segments[number];
    const opening = !seen.has(number) && prompts && prompt;
    const heading = h("li", {}, segmentHeading(segments[number], number, seen.has(number)));
    seen.add(number);
    return [
      heading,
      opening && h("li", { class: "turn" }, unfolding("prompt", parent === null ? "Prompt" : "New part of the prompt", opening)),
      spoken(turn),
    ];
  });
}

function acts(turn) {
  if (turn.segment === null) return [line("result", turn.text || "(empty)", "helper"), note("Reply of the helper model, not trained on.")];
  const asked = [turn.queries.map((query) => line("search", query)), turn.urls.map((url) => line("access", url))];
  const called = turn.action === "tool" && [
    line("search", turn.call, turn.tool),
    line("result", turn.result, `${turn.tool} result`),
    // The agent itself ran the function; its result is known only as part of the next prompt.
    turn.result === null && !turn.hits.length && turn.shown && unfolding(`${turn.tool} result`, "in the next prompt", turn.shown),
  ];
  // Hits of an answer turn were retrieved before generation (method rag).
  const before = ["search", "access", "tool"].includes(turn.action) ? [] : [documents(turn)];
  const spoken = [
    line("thought", turn.thought),
    ...asked,
    called,
    turn.action === "answer" && line("answer", turn.answer || "(empty)"),
  ];
  const fault = turn.action === "malformed" && [line("fault", turn.text || "(empty)", "no action"), note(turn.reason)];
  const reward = turn.reward === null ? null : note(`reward ${turn.reward.toFixed(2)}`);
  return [
    before,
    fault || spoken,
    before.length ? null : documents(turn),
    note(NOTES[turn.outcome]),
    reward,
    folded(turn),
  ];
}

function line(act, text, label = act) {
  if (!text) return null;
  return h(
    "div",
    { class: `said ${act}` },
    h("span", { class: "label" }, label),
    h("div", { class: "words", dir: "auto" }, text),
  );
}

function note(text) {
  return text ? h("div", { class: "said" }, h("span", { class: "label" }), h("p", { class: "quiet" }, text)) : null;
}

/** The sampled text of a turn, and the observation. */
function folded(turn) {
  if (!turn.text) return null;
  return unfolding("", `as sampled, ${counted(turn.sampled ?? 0, "token")} sampled`, turn.text, turn.shown);
}

function unfolding(label, summary, ...texts) {
  const shown = texts.filter(Boolean).map((text) => h("pre", { dir: "auto" }, text));
  return h(
    "div",
    { class: "said" },
    h("span", { class: "label" }, label),
    h("details", { class: "raw" }, h("summary", {}, summary), shown),
  );
}

function documents(turn) {
  const { hits } = turn;
  if (!hits.length) return turn.outcome === "found" ? note("Nothing was found.") : null;
  const label = h("span", { class: "label" }, counted(hits.length, "document"));
  // Without recorded passages, the shown text is decoded from the tokens.
  const shown =
    turn.shown &&
    !hits.some((hit) => hit.text) &&
    h(
      "li",
      { class: "hit" },
      h(
        "details",
        {},
        h("summary", { class: "head quiet" }, "text shown to the model"),
        h("p", { dir: "auto" }, turn.shown.trim()),
      ),
    );
  return h(
    "div",
    { class: "said documents" },
    label,
    h(
      "ol",
      { class: "hits" },
      hits.map((hit, place) => passage(hit, place, turn)),
      shown,
    ),
  );
}

function passage(hit, place, turn) {
  const several = turn.queries.length > 1 ? `${hit.query + 1}.` : "";
  const head = [
    h("span", { class: "rank figure quiet" }, `${several}${place + 1}`),
    h("span", { class: "title", dir: "auto" }, hit.title || `passage ${hit.id}`),
    hit.gold && h("span", { class: "badge good", title: "supporting passage of the question" }, "gold"),
    h("span", { class: "score figure quiet", title: "retrieval score" }, share(hit.score)),
  ];
  if (!hit.text) return h("li", { class: "hit" }, h("div", { class: "head" }, head));
  return h(
    "li",
    { class: "hit" },
    h("details", {}, h("summary", { class: "head" }, head), h("p", { dir: "auto" }, hit.text)),
  );
}
