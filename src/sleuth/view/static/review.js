// Review of a question file: keep, edit or drop each question, with its evidence beside it.

import { ask } from "./api.js";
import { h, replace } from "./element.js";
import { bind, listen } from "./keyboard.js";

const state = { questions: [], at: 0, shown: null, editing: false };
const head = h("header", { class: "reviewhead" });
const list = h("nav", { class: "list", "aria-label": "Questions" });
const card = h("main", { class: "card" });
const problem = h("p", { class: "bad", role: "alert" });
const JUMP = 10;

document.body.append(head, h("div", { class: "review" }, list, card));
listen();
bind([
  ["k", "keep the question", () => decide({ action: "keep" })],
  ["d", "drop the question", () => decide({ action: "drop" })],
  ["e", "edit the question and its answers", () => edit()],
  ["u", "undo the decision", () => decide({ action: "undo" }, 0)],
  ["j", "next question", () => go(state.at + 1)],
  ["ArrowDown", "next question", () => go(state.at + 1)],
  ["ArrowUp", "previous question", () => go(state.at - 1)],
  ["p", "previous question", () => go(state.at - 1)],
  ["n", "next question without a decision", () => go(nextOpen(state.at + 1))],
  ["PageDown", "ten questions further", () => go(state.at + JUMP)],
  ["PageUp", "ten questions back", () => go(state.at - JUMP)],
]);

try {
  const { file, decisions, questions } = await ask("questions");
  Object.assign(state, { file, decisions, questions });
  drawList();
  await go(Math.max(0, nextOpen(0)));
} catch (error) {
  replace(card, h("p", { class: "bad", role: "alert" }, error.message));
}

function nextOpen(from) {
  const found = state.questions.findIndex((each, place) => place >= from && !each.action);
  return found < 0 ? state.at : found;
}

async function go(place) {
  state.at = Math.min(Math.max(place, 0), state.questions.length - 1);
  state.editing = false;
  try {
    state.shown = await ask("question", { id: state.questions[state.at].id });
    replace(problem);
  } catch (error) {
    replace(problem, error.message);
  }
  draw();
}

async function decide(decision, step = 1) {
  const { id } = state.questions[state.at];
  const response = await fetch("/api/decision", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ id, ...decision }),
  }).catch((error) => ({ ok: false, json: async () => ({ detail: error.message }) }));
  const answer = await response.json();
  if (!response.ok) {
    replace(problem, answer.detail);
    return;
  }
  state.questions[state.at] = { ...state.questions[state.at], action: answer.action, question: answer.question };
  drawList();
  await go(state.at + step);
}

function edit() {
  state.editing = true;
  draw();
  card.querySelector("textarea")?.focus();
}

function draw() {
  drawHead();
  for (const [place, button] of [...list.children].entries()) {
    if (place === state.at) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  list.children[state.at]?.scrollIntoView({ block: "nearest" });
  const { shown } = state;
  if (!shown) return replace(card, problem);
  return replace(
    card,
    problem,
    state.editing ? form(shown) : reading(shown),
    shown.evidence.map((each) => evidence(each, shown.golden_answers)),
  );
}

function drawHead() {
  const count = (action) => state.questions.filter((each) => each.action === action).length;
  const open = count(null);
  replace(
    head,
    h("h1", {}, state.file ?? "Review"),
    h("span", { class: "quiet" }, `Decisions: ${state.decisions}`),
    h(
      "span",
      { class: "counts figure" },
      `${count("keep")} kept, ${count("edit")} edited, ${count("drop")} dropped, ${open} open. Press ? for keys.`,
    ),
  );
}

function drawList() {
  replace(
    list,
    state.questions.map((each, place) =>
      h("button", { class: each.action ?? "open", onclick: () => go(place) }, each.question),
    ),
  );
}

function reading(shown) {
  const labels = [shown.type, shown.answerable === false && "unanswerable", shown.action].filter(Boolean);
  return h(
    "section",
    {},
    h("p", { class: "asked" }, shown.question),
    h("p", {}, h("span", { class: "quiet" }, "Answer: "), shown.golden_answers.join(" | ")),
    h("p", { class: "label" }, [shown.id, ...labels].join(" · ")),
    h(
      "div",
      { class: "tools" },
      h("button", { class: "button", onclick: () => decide({ action: "keep" }) }, "Keep (k)"),
      h("button", { class: "button", onclick: () => edit() }, "Edit (e)"),
      h("button", { class: "button", onclick: () => decide({ action: "drop" }) }, "Drop (d)"),
      shown.action && h("button", { class: "button", onclick: () => decide({ action: "undo" }, 0) }, "Undo (u)"),
    ),
  );
}

function form(shown) {
  const question = h("textarea", { "aria-label": "Question", value: shown.question });
  const answers = h("textarea", { "aria-label": "Answers, one per line", value: shown.golden_answers.join("\n") });
  const save = () => {
    const golden = answers.value.split("\n").filter((line) => line.trim());
    return decide({ action: "edit", question: question.value, golden_answers: golden });
  };
  const cancel = () => go(state.at);
  const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && save();
  return h(
    "section",
    { onkeydown: keys },
    h("p", { class: "label" }, "Question"),
    question,
    h("p", { class: "label" }, "Answers, one per line"),
    answers,
    h(
      "div",
      { class: "tools" },
      h("button", { class: "button", onclick: save }, "Save (Ctrl+Enter)"),
      h("button", { class: "button", onclick: cancel }, "Cancel"),
    ),
  );
}

function evidence({ id, quotes, contents }, answers) {
  const text = contents ?? quotes.join("\n");
  return h(
    "section",
    {},
    h("p", { class: "label" }, `Evidence: ${id}`),
    h("div", { class: "passage" }, text ? marked(text, quotes, answers) : "The passage is not known; give --corpus."),
  );
}

/** The text with its quotes and answers marked; what overlaps is marked once. */
function marked(text, quotes, answers) {
  const spans = [...answers.map((each) => [each, "answer"]), ...quotes.map((each) => [each, "quote"])];
  const found = spans
    .map(([each, kind]) => ({ start: text.toLowerCase().indexOf(each.toLowerCase()), size: each.length, kind }))
    .filter((each) => each.start >= 0 && each.size > 0);
  const kinds = new Array(text.length).fill("");
  for (const { start, size, kind } of found.reverse()) kinds.fill(kind, start, start + size);
  const parts = [];
  for (let place = 0; place < text.length; ) {
    let end = place;
    while (end < text.length && kinds[end] === kinds[place]) end += 1;
    const piece = text.slice(place, end);
    parts.push(kinds[place] ? h("mark", { class: kinds[place] }, piece) : piece);
    place = end;
  }
  return parts;
}
