// A table that scrolls horizontally if wider than the page.

import { h } from "../element.js";

/** `heads` are labels or [label, class]; `rows` are table rows. */
export function table(kind, heads, rows) {
  const cells = heads.map((head) => (Array.isArray(head) ? h("th", { class: head[1] }, head[0]) : h("th", {}, head)));
  return h(
    "div",
    { class: "scroll" },
    h("table", { class: kind }, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows)),
  );
}
