// An estimate as a dot with its interval, on a scale shared by a column.

import { svg } from "../element.js";

const WIDTH = 120;
const HEIGHT = 14;

/** The drawing; `low` and `high` are the ends of the scale; zero is marked if inside. */
export function whisker(estimate, low = 0, high = 1, tone = "c0") {
  if (!estimate) return null;
  const at = (value) => (WIDTH * (Math.min(high, Math.max(low, value)) - low)) / (high - low || 1);
  const middle = HEIGHT / 2;
  const line = (x1, x2, y1, y2, colour, width) =>
    svg("line", { x1, x2, y1, y2, "stroke-width": width, style: { stroke: `var(--${colour})` } });
  return svg(
    "svg",
    { class: "whisker", width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    line(0, WIDTH, middle, middle, "line", 1),
    low < 0 && high > 0 ? line(at(0), at(0), 0, HEIGHT, "quiet", 1) : null,
    line(at(estimate.low), at(estimate.high), middle, middle, tone, 3),
    svg("circle", { cx: at(estimate.value), cy: middle, r: 4, style: { fill: `var(--${tone})` } }),
  );
}

/** A scale around zero that covers all estimates. */
export function around(estimates) {
  const largest = Math.max(
    0.01,
    ...estimates.filter(Boolean).flatMap(({ low, high }) => [Math.abs(low), Math.abs(high)]),
  );
  return [-largest, largest];
}
