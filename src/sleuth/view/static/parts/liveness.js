// Live status of a run or evaluation.

import { h } from "../element.js";
import { live } from "../library.js";
import { duration } from "../number.js";

/** "live" while being written, "open" if interrupted or slow, otherwise the time since it finished. */
export function liveness(entry) {
  if (live(entry)) return h("span", { class: "live named" }, h("span", { class: "dot" }), "live");
  return entry.state === "open" ? "open" : `${duration(Math.round(entry.age_seconds))} ago`;
}
