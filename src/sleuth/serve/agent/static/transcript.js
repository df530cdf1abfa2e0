// One question and what became of it: thoughts, searches with their sources, the answer, what it cost.

import { counted, h, visible } from "./element.js";

const STOPS = {
  answered: "answered",
  out_of_turns: "no answer: out of turns",
  out_of_tokens: "no answer: out of tokens",
  max_tokens: "no answer: out of tokens",
};
const REFUSED = "not carried out: no calls were left";

export class Transcript {
  constructor(question, stop) {
    this.state = h("span", { class: "mark", role: "status" }, "thinking");
    this.stopping = h("button", { type: "button", class: "small", onclick: stop }, "Stop");
    this.steps = h("ol", { class: "steps" });
    this.answer = h("p", { class: "answer", "aria-live": "polite" });
    this.cost = h("dl", { class: "cost" });
    const head = h("header", {}, h("h2", { dir: "auto" }, question), this.state, this.stopping);
    this.element = h("article", { class: "card transcript busy" }, head, this.steps, this.answer, this.cost);
    this.thought = null;
    this.searches = new Map();
  }

  /** Takes the next chunk of the answer. */
  take(chunk) {
    if (chunk.usage) this.#spend(chunk.usage);
    for (const { delta } of chunk.choices) {
      if (delta.reasoning_content) this.#think(delta.reasoning_content);
      for (const step of delta.sleuth?.steps ?? []) this.#step(step);
      if (delta.content) this.answer.append(visible(delta.content));
      if (delta.sleuth?.stop) this.#end(delta.sleuth);
    }
  }

  /** There will be no answer, for this reason. */
  fail(reason) {
    this.#close(reason, "bad");
  }

  #think(text) {
    if (this.thought === null) {
      this.thought = document.createTextNode("");
      this.steps.append(line("thought", "thought", this.thought));
    }
    this.thought.appendData(visible(this.thought.length ? text : text.trimStart()));
  }

  #step(step) {
    if (step.type) this.thought = null;
    if (step.type === "search") this.#call(step.index, "search", step.queries);
    if (step.type === "access") this.#call(step.index, "open", step.urls);
    if (step.type === "tool") this.#call(step.index, step.name, Object.values(step.arguments).map(shown));
    if (step.type === "malformed") this.steps.append(line("fault", "no action", step.reason));
    if (step.sources || step.result !== undefined || step.failure) this.#found(step);
  }

  #call(index, label, asked) {
    const waiting = h("p", { class: "quiet" }, "searching");
    this.searches.set(index, waiting);
    this.steps.append(line("search", label, ...asked.map((query) => h("p", { class: "query", dir: "auto" }, query)), waiting));
    this.state.textContent = "searching";
  }

  #found({ index, sources, result, failure }) {
    const waiting = this.searches.get(index);
    this.searches.delete(index);
    this.state.textContent = "thinking";
    if (failure) waiting.replaceWith(h("p", { class: "bad" }, failure));
    else if (result !== undefined) waiting.replaceWith(h("p", { class: "result", dir: "auto" }, visible(result)));
    else if (!sources.length) waiting.replaceWith(h("p", { class: "quiet" }, "nothing was found"));
    else waiting.replaceWith(h("ul", { class: "sources" }, ...sources.map(source)));
  }

  #end({ stop, searches, seconds }) {
    for (const waiting of this.searches.values()) waiting.textContent = REFUSED;
    this.cost.append(...pair("searches", searches), ...pair("seconds", seconds.toFixed(seconds < 10 ? 2 : 1)));
    this.#close(STOPS[stop] ?? stop, stop === "answered" ? "good" : "bad");
  }

  #spend({ prompt_tokens: given, completion_tokens: sampled }) {
    this.cost.append(...pair("tokens read", given.toLocaleString("en")), ...pair("tokens written", sampled.toLocaleString("en")));
  }

  #close(state, mood) {
    this.state.textContent = state;
    this.state.classList.add(mood);
    this.stopping.remove();
    this.element.classList.remove("busy");
  }
}

/** An argument of a tool: text as it is, anything else as JSON. */
function shown(argument) {
  return typeof argument === "string" ? argument : JSON.stringify(argument);
}

function line(kind, label, ...children) {
  return h("li", { class: `said ${kind}` }, h("span", { class: "label" }, label), h("div", { class: "words", dir: "auto" }, ...children));
}

function source({ id, title, text, score, url }) {
  const head = h("summary", {}, h("span", { class: "title", dir: "auto" }, title || `passage ${id}`),
    h("span", { class: "quiet score", title: "score of the search" }, score.toPrecision(3)));
  return h("li", {}, h("details", {}, head, h("p", { dir: "auto" }, text), address(url)));
}

/** A link where the address is one of the web; anything else a document names is shown as text. */
function address(url) {
  if (!url) return null;
  if (!/^https?:\/\//i.test(url)) return h("p", { class: "quiet" }, url);
  return h("p", {}, h("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, url));
}

function pair(name, value) {
  return [h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))];
}

/** What the page says of the agent. */
export function described({ id, sleuth }) {
  const searches = sleuth.method === "search" ? `, with ${counted(sleuth.searches, "search", "searches")} at most` : "";
  return `${id} answers by ${sleuth.method} in ${sleuth.index}${searches}.`;
}
