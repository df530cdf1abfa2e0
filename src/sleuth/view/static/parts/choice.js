// Controls to choose one of several options.

import { h } from "../element.js";

let made = 0;

/** Segmented control; `options` are [value, label, disabled]. */
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

/** Drop-down list; `options` are [value, label]. */
export function menu(name, options, value, chosen) {
  const items = options.map(([each, words]) =>
    h("option", { value: each, selected: String(each) === String(value ?? "") }, words),
  );
  return h("select", { "aria-label": name, onchange: (event) => chosen(event.target.value) }, items);
}

/** A control with a label. */
export function named(name, control) {
  return h("label", { class: "named" }, h("span", {}, name), control);
}
