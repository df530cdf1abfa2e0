// Placeholders: waiting, empty, failed.

import { h } from "../element.js";

/** Loading note, shown after a delay. */
export function waiting(what = "Reading…") {
  return h("p", { class: "waiting", role: "status" }, what);
}

/** Empty state with a reason and an optional command to run. */
export function empty(title, advice, command = null) {
  return h(
    "section",
    { class: "state inline" },
    h("h2", {}, title),
    h("p", {}, advice),
    command && h("pre", {}, command),
  );
}

/** Error message of the server, with a retry button. */
export function failed(error, again) {
  return h(
    "section",
    { class: "state inline", role: "alert" },
    h("h2", {}, "Could not load"),
    h("p", {}, error.message),
    again && h("button", { class: "button", onclick: again }, "Try again"),
  );
}
