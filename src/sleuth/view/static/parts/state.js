// What stands where nothing can be shown: waiting, empty, failed; the last two say what to do.

import { h } from "../element.js";

/** A line that appears only where waiting takes long enough to be noticed. */
export function waiting(what = "Reading…") {
  return h("p", { class: "waiting", role: "status" }, what);
}

/** Nothing is there, why, and how something comes to be there; `command` is shown as one to type. */
export function empty(title, advice, command = null) {
  return h(
    "section",
    { class: "state inline" },
    h("h2", {}, title),
    h("p", {}, advice),
    command && h("pre", {}, command),
  );
}

/** A failure as a sentence of the server, with a way to try again. */
export function failed(error, again) {
  return h(
    "section",
    { class: "state inline", role: "alert" },
    h("h2", {}, "This could not be shown"),
    h("p", {}, error.message),
    again && h("button", { class: "button", onclick: again }, "Try again"),
  );
}
