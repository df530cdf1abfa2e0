// Keyboard shortcuts and their help sheet.

import { h } from "./element.js";

const bindings = new Map();

/** Bind keys: [[key, description, action], ...]; returns a function that unbinds them. */
export function bind(entries) {
  for (const [key, meaning, action] of entries) bindings.set(key, { meaning, action });
  return () => entries.forEach(([key, , action]) => bindings.get(key)?.action === action && bindings.delete(key));
}

/** Start listening; "?" opens the help sheet. */
export function listen() {
  const sheet = h("dialog", { class: "sheet", "aria-label": "Keyboard" });
  document.body.append(sheet);
  sheet.addEventListener("click", (event) => event.target === sheet && sheet.close());
  bind([["?", "this list", () => open(sheet)]]);
  document.addEventListener("keydown", (event) => pressed(event, sheet));
}

function pressed(event, sheet) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && writing(event.target)) event.target.blur();
  if (writing(event.target) || sheet.open) return;
  const bound = bindings.get(event.key);
  if (!bound) return;
  event.preventDefault();
  bound.action(event);
}

function writing(target) {
  return (
    target instanceof HTMLElement &&
    target.matches("input:not([type=checkbox], [type=radio], [type=range]), textarea, select")
  );
}

function open(sheet) {
  const rows = [...bindings].map(([key, { meaning }]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)]);
  sheet.replaceChildren(
    h("header", {}, h("h2", {}, "Keyboard"), h("button", { class: "plain", onclick: () => sheet.close() }, "Close")),
    h("dl", { class: "keys" }, rows),
  );
  sheet.showModal();
}
