// What is read: one trajectory as a conversation or token by token, its group, or its question over steps.

import { abandoned, ask, whole } from "../api.js";
import { h, redraw, replace } from "../element.js";
import { groupColumns } from "../parts/group.js";
import { segments } from "../parts/choice.js";
import { conversation } from "../parts/conversation.js";
import { heading } from "../parts/heading.js";
import { icon } from "../parts/icons.js";
import { questionHistory } from "../parts/history.js";
import { empty, failed, waiting } from "../parts/state.js";
import { tokenView } from "../parts/tokens.js";
import { change } from "../route.js";

export const VIEWS = [
  ["conversation", "Conversation", "c"],
  ["tokens", "Tokens", "t"],
  ["group", "Group", "g"],
  ["steps", "Over steps", "q"],
];
const OF_RUNS = ["group", "steps"];

export function reader(area) {
  let pending = new AbortController();
  let shown = { key: null, trajectory: null };
  let now = { query: new URLSearchParams(), source: {} };

  async function show(query, source) {
    now = { query, source };
    pending.abort();
    pending = new AbortController();
    const { signal } = pending;
    if (!query.has("at")) {
      shown = { key: null, trajectory: null };
      replace(area, empty("Choose a trajectory", "Use j and k to move through the list, o to open, ? for all keys."));
      return;
    }
    try {
      await load(signal);
      await draw(signal);
    } catch (error) {
      if (!abandoned(error))
        replace(
          area,
          tools(),
          failed(error, () => show(query, source)),
        );
    }
  }

  async function load(signal) {
    const key = `${now.source.key} ${now.query.get("at")}`;
    if (key === shown.key) return;
    if (!shown.key) replace(area, waiting());
    const { run, evaluation } = now.source;
    const trajectory = await ask("trajectory", { run, evaluation, at: now.query.get("at") }, signal);
    shown = { key, trajectory: { ...trajectory, evaluation } };
    area.scrollTop = 0;
  }

  async function draw(signal) {
    const { trajectory } = shown;
    switch (view()) {
      case "tokens":
        redraw(
          area,
          tools(),
          heading(trajectory),
          tokenView(trajectory, now.query.get("by") ?? "origin", (by) => change({ by })),
        );
        break;
      case "group": {
        const { step, group } = trajectory;
        replace(area, tools(), groupColumns(await ask("group", { run: now.source.run, step, group }, signal), trajectory.at));
        centre(area.querySelector(".columns"), area.querySelector(".chosen"));
        break;
      }
      case "steps": {
        const { question_id: question, data_source: source } = trajectory;
        await whole("question", { run: now.source.run, question, source }, signal, (answer) =>
          replace(area, tools(), questionHistory(answer, trajectory.at)),
        );
        break;
      }
      default:
        redraw(area, tools(), heading(trajectory), conversation(trajectory));
    }
  }

  function view() {
    const asked = now.query.get("view") ?? "conversation";
    return now.source.evaluation && OF_RUNS.includes(asked) ? "conversation" : asked;
  }

  function turn(to) {
    if (now.query.has("at")) change({ view: to === "conversation" ? null : to });
  }

  function tools() {
    const options = VIEWS.filter(([name]) => now.source.run || !OF_RUNS.includes(name)).map(([name, title]) => [
      name,
      title,
    ]);
    const neighbours = shown.trajectory?.neighbours ?? {};
    const step = (to, drawing, words) =>
      h(
        "button",
        {
          class: "icon",
          disabled: !to,
          title: words,
          "aria-label": words,
          onclick: () => change({ at: to }),
        },
        icon(drawing),
      );
    return h(
      "div",
      { class: "tools readertools" },
      h("button", { class: "button back", onclick: () => change({ at: null, view: null }) }, icon("back"), "List"),
      segments("Show as", options, view(), turn),
      h(
        "span",
        { class: "end" },
        step(neighbours.previous, "left", "Previous in the file"),
        step(neighbours.next, "right", "Next in the file"),
      ),
    );
  }

  return { show, turn, leave: () => pending.abort() };
}

function centre(columns, chosen) {
  if (chosen)
    columns.scrollLeft = chosen.offsetLeft - columns.offsetLeft - (columns.clientWidth - chosen.clientWidth) / 2;
}
