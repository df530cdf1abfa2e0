// Icons in the colour of the surrounding text.

import { svg } from "../element.js";

const PATHS = {
  glass: "M6.5 2a4.5 4.5 0 1 1 0 9a4.5 4.5 0 0 1 0-9zM10 10l4.5 4.5",
  sun:
    "M8 5a3 3 0 1 1 0 6a3 3 0 0 1 0-6z" +
    "M8 .8v1.7M8 13.5v1.7M.8 8h1.7M13.5 8h1.7M2.9 2.9l1.2 1.2M11.9 11.9l1.2 1.2M13.1 2.9l-1.2 1.2M4.1 11.9l-1.2 1.2",
  moon: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  half: "M8 2a6 6 0 1 1 0 12a6 6 0 0 1 0-12zM8 2v12M8 5l3.5 3.5M8 9l2.5 2.5",
  keyboard: "M1.5 4h13v8h-13zM4 6.5h.01M6.7 6.5h.01M9.3 6.5h.01M12 6.5h.01M5 9.5h6",
  back: "M10 3L5 8l5 5",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5l-5 5",
};

/** An icon by name, hidden from screen readers: its parent needs a label. */
export function icon(name) {
  const stroke = {
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.6,
    "stroke-linecap": "round",
    "stroke-linejoin": "round",
  };
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: PATHS[name], ...stroke }));
}
