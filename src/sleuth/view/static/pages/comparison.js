// Comparison of two evaluations: mean differences, and question by question.

import { abandoned, ask } from "../api.js";
import { h, redraw, replace } from "../element.js";
import { bind } from "../keyboard.js";
import { library } from "../library.js";
import { short } from "../number.js";
import { menu, named } from "../parts/choice.js";
import { gains } from "../parts/gains.js";
import { icon } from "../parts/icons.js";
import { pair } from "../parts/pair.js";
import { PAGE, anew, isOpen, pairRows } from "../parts/pairrows.js";
import { empty, failed, waiting } from "../parts/state.js";
import { change } from "../route.js";

export function comparison(place) {
  const areas = Object.fromEntries(
    ["sides", "gains", "found", "reader"].map((name) => [name, h("section", { class: name })]),
  );
  let pending = new AbortController();
  let shelf = null;
  let answer = null;
  let query = new URLSearchParams();

  async function show(asked) {
    query = asked;
    pending.abort();
    pending = new AbortController();
    const { signal } = pending;
    shelf ??= (replace(place, waiting()), await library());
    if (shelf.evaluations.length < 2) {
      replace(
        place,
        empty(
          "Nothing to compare yet",
          "A comparison needs two evaluations of the same questions.",
          "sleuth evaluate RUN --out evaluations/second",
        ),
      );
      return;
    }
    if (!areas.sides.isConnected)
      replace(place, areas.sides, areas.gains, h("div", { class: "reading" }, areas.found, areas.reader));
    place.classList.toggle("is-open", query.has("a") || query.has("b"));
    redraw(areas.sides, sides());
    if (!query.get("first") || !query.get("second")) {
      replace(areas.found, empty("Choose two evaluations", "The second is compared with the first."));
      return;
    }
    try {
      answer = await ask("compare", parameters(), signal);
      draw();
      await read(signal);
    } catch (error) {
      if (!abandoned(error)) refuse(error);
    }
  }

  function parameters() {
    const names = ["first", "second", "measure", "common", "show", "source", "from"];
    return { ...Object.fromEntries(names.map((name) => [name, query.get(name)])), limit: PAGE };
  }

  function refuse(error) {
    const common = h(
      "button",
      { class: "button", onclick: () => change({ common: 1 }) },
      "Compare common questions",
    );
    replace(areas.gains, failed(error), query.get("common") ? null : h("p", { class: "state inline" }, common));
    replace(areas.found);
    replace(areas.reader);
  }

  function sides() {
    const options = [["", "choose…"], ...shelf.evaluations.map((each) => [each.id, each.name])];
    const pick = (side) => menu(side, options, query.get(side), (id) => change({ [side]: id, ...anew() }));
    const swap = () => change({ first: query.get("second"), second: query.get("first"), ...anew() });
    return h(
      "div",
      { class: "tools" },
      named("first", pick("first")),
      h("button", { class: "plain", onclick: swap, title: "Swap evaluations", "aria-label": "Swap evaluations" }, "⇄"),
      named("second", pick("second")),
      answer &&
        named(
          "measure",
          menu("Measure", Object.entries(answer.measures), query.get("measure") ?? answer.measure, (measure) =>
            change({ measure, ...anew() }),
          ),
        ),
    );
  }

  function draw() {
    redraw(areas.sides, sides());
    const about = [
      `${short(answer.questions)} questions in both`,
      answer.left_out && `${short(answer.left_out)} in only one`,
      answer.unusable && `${short(answer.unusable)} failed`,
    ];
    replace(
      areas.gains,
      gains(answer, answer.measure),
      h("p", { class: "quiet" }, about.filter(Boolean).join(", "), "."),
    );
    redraw(areas.found, pairRows(answer, query));
    areas.found.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  async function read(signal) {
    if (!query.has("a") && !query.has("b")) {
      replace(
        areas.reader,
        empty("Choose a question", "Use j and k to move through the list; both conversations appear here side by side."),
      );
      return;
    }
    const both = [
      { ...answer.first, at: query.get("a") },
      { ...answer.second, at: query.get("b") },
    ];
    const back = h(
      "div",
      { class: "tools readertools" },
      h("button", { class: "button back", onclick: () => change({ a: null, b: null }) }, icon("back"), "List"),
    );
    replace(areas.reader, back, await pair(both, signal));
    areas.reader.scrollTop = 0;
  }

  function move(by) {
    const rows = answer?.rows ?? [];
    const at = rows.findIndex((row) => isOpen(row, query));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
    if (next) change({ a: next.first.at, b: next.second.at });
  }

  const unbind = bind([
    ["j", "next question", () => move(1)],
    ["k", "previous question", () => move(-1)],
    ["o", "open the first question", () => !query.has("a") && move(1)],
    ["Escape", "back to the list", () => change({ a: null, b: null })],
  ]);
  return {
    show,
    leave: () => {
      pending.abort();
      unbind();
      place.classList.remove("is-open");
    },
  };
}
