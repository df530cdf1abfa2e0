// Controls that choose one of several.

import { h } from "../element.js";

let made = 0;

/** A row of alternatives of which one is pressed; `options` are [value, words, disabled]. */
export function segments(name, options, value, chosen) {
  const group = `choice-${(made += 1)}`;
  const choices = options.map(([each, words, disabled]) =>
    h(
      "label",
      {},
      words,
      h("input", {
        type: "radio",
        name: group,
        value: each,
        checked: each === value,
        disabled,
        onchange: () => chosen(each),
      }),
    ),
  );
  return h("div", { class: "segments", role: "radiogroup", "aria-label": name }, choices);
}

/** A list that opens; `options` are [value, words]. */
export function menu(name, options, value, chosen) {
  const items = options.map(([each, words]) =>
    h("option", { value: each, selected: String(each) === String(value ?? "") }, words),
  );
  return h("select", { "aria-label": name, onchange: (event) => chosen(event.target.value) }, items);
}

/** A control with its name before it. */
export function named(name, control) {
  return h("label", { class: "named" }, h("span", {}, name), control);
}
