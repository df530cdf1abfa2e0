// Whether something is being written at this moment.

import { h } from "../element.js";
import { live } from "../library.js";
import { duration } from "../number.js";

/** "live" with a breathing dot, "open" where it was broken off or is slow, else how long ago it was finished. */
export function liveness(entry) {
  if (live(entry)) return h("span", { class: "live named" }, h("span", { class: "dot" }), "live");
  return entry.state === "open" ? "open" : `${duration(Math.round(entry.age_seconds))} ago`;
}
