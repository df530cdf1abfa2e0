// Filter bar of the trajectory list.

import { h } from "../element.js";
import { count, none } from "../filter.js";
import { change } from "../route.js";
import { STOPS } from "../verdict.js";
import { menu, named } from "./choice.js";

/** The filter bar; `shelf` is the library, `source` the run or evaluation shown. */
export function filters(query, shelf, source, stops) {
  const set = (settings) => change({ ...settings, cursor: null, page: null });
  const field = (name, words, kind = {}) =>
    h("input", {
      class: "field number",
      name,
      value: query.get(name) ?? "",
      placeholder: words,
      "aria-label": words,
      inputmode: "decimal",
      onchange: (event) => set({ [name]: event.target.value.trim() }),
      ...kind,
    });
  const active = count(query);
  return h(
    "div",
    { class: "tools filters" },
    chooser(shelf, source),
    field("text", "Search text", {
      class: "field text",
      type: "search",
      inputmode: "search",
      placeholder: "Search text, then Enter",
    }),
    h(
      "details",
      { class: "more", open: window.innerWidth > 900 || active > 0 },
      h("summary", {}, active ? `Filters (${active})` : "Filters"),
      h(
        "div",
        { class: "tools" },
        source.run && named("step", h("span", { class: "range" }, field("from", "from"), "–", field("to", "to"))),
        named("reward", h("span", { class: "range" }, field("min", "least"), "–", field("max", "most"))),
        named(
          "stop",
          menu(
            "Stop reason",
            [["", "any"], ...stops.map((stop) => [stop, STOPS[stop] ?? stop])],
            query.get("stop"),
            (stop) => set({ stop }),
          ),
        ),
        source.run && named("group", field("group", "any")),
        named("segments", field("segments", "at least")),
        named("question", field("question", "id", { class: "field", inputmode: "text" })),
        active > 0 && h("button", { class: "plain", onclick: () => change(none()) }, "clear"),
      ),
    ),
  );
}

function chooser(shelf, source) {
  const group = (name, kind, entries) =>
    entries.length > 0 &&
    h(
      "optgroup",
      { label: name },
      entries.map((each) =>
        h("option", { value: `${kind}:${each.id}`, selected: source[kind] === each.id }, each.name),
      ),
    );
  const go = (event) => {
    const [, kind, id] = /^(run|evaluation):(.*)$/s.exec(event.target.value);
    change({ ...none(), run: null, evaluation: null, [kind]: id, at: null, view: null });
  };
  return h(
    "select",
    { "aria-label": "Run or evaluation", class: "source", onchange: go },
    group("Runs", "run", shelf.runs),
    group("Evaluations", "evaluation", shelf.evaluations),
  );
}
