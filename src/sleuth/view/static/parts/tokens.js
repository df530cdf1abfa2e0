// A trajectory token by token, coloured by an overlay, with a readout of the current token.

import { h, replace } from "../element.js";
import { short } from "../number.js";
import { OVERLAYS, available, shade } from "../shade.js";
import { segments } from "./choice.js";
import { segmented, segmentHeading } from "./segment.js";

const FOLDED = 40; // shared tokens that are shown without being asked for
const FIGURES = ["logprob", "ratio", "advantage", "version"];

/** The tokens with the overlay `by`; `chosen(name)` is called when another is selected. */
export function tokenView(trajectory, by, chosen) {
  const { tokens, missing, segments: parts } = trajectory;
  if (!tokens?.ids.length)
    return h(
      "p",
      { class: "quiet" },
      missing.tokens ?? "This trajectory has text only: the model was behind an API that returns no tokens.",
    );
  const name = available(tokens, by) ? by : "origin";
  const colours = shade(tokens, name);
  const options = Object.entries(OVERLAYS).map(([key, { title }]) => [key, title, !available(tokens, key)]);
  const readout = h("p", { class: "readout figure", role: "status" }, hint());
  const pieces = tokens.ids.map((id, place) => piece(tokens, place, colours.of(place)));
  const text = h(
    "div",
    { class: "tokens", tabindex: 0, "aria-label": "Tokens; arrow keys move", dir: "auto" },
    segmented(parts) ? parts.map((part, number) => section(part, number, pieces)) : pieces,
  );
  follow(text, pieces, (place) => replace(readout, told(tokens, place, parts)));
  return h(
    "div",
    { class: `tokenview by-${name}` },
    h("div", { class: "tools" }, segments("Colour tokens by", options, name, chosen), legend(colours.legend)),
    absent(missing, tokens),
    readout,
    text,
  );
}

/** One segment; a long shared prefix is folded. */
function section(part, number, pieces) {
  const own = part.start + part.shared;
  const shared = pieces.slice(part.start, own);
  const fold = () =>
    h("details", { class: "raw shared" }, h("summary", {}, `${shared.length} tokens shared with segment ${part.parent}`), shared);
  return h(
    "section",
    {},
    segmentHeading(part, number),
    shared.length > FOLDED ? fold() : shared,
    pieces.slice(own, part.end),
  );
}

function piece(tokens, place, look) {
  const text = tokens.text?.[place] ?? ` ${tokens.ids[place]}`;
  const style = look?.[0] ? { "--tone": `var(--${look[0]})`, "--strength": `${(100 * look[1]).toFixed(0)}%` } : {};
  const shown = text === "" ? "∅" : text;
  return h(
    "span",
    { class: tokens.origin[place] === "given" ? "t" : `t ${tokens.origin[place]}`, style, "data-place": place },
    shown.includes("\n") ? [h("i", { class: "break" }, "↵"), shown] : shown,
  );
}

function follow(text, pieces, told) {
  let marked = null;
  const mark = (element) => {
    if (!element || element === marked) return;
    marked?.classList.remove("marked");
    marked = element;
    marked.classList.add("marked");
    told(Number(marked.dataset.place));
  };
  for (const event of ["pointerover", "click"])
    text.addEventListener(event, ({ target }) => mark(target.closest(".t")));
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    mark(marked ? pieces[Number(marked.dataset.place) + step] : pieces[0]);
    const folded = marked.closest("details");
    if (folded) folded.open = true;
    marked.scrollIntoView({ block: "nearest" });
  });
}

function told(tokens, place, parts) {
  const number = parts.findIndex(({ start, end }) => start <= place && place < end);
  const at = segmented(parts) ? `segment ${number}, token ${place - parts[number].start}` : `token ${place}`;
  const figures = FIGURES.filter((name) => tokens[name]?.[place] !== null && tokens[name] !== null).map((name) =>
    h("span", {}, h("span", { class: "quiet" }, name), " ", short(tokens[name][place])),
  );
  return [
    h("code", {}, JSON.stringify(tokens.text?.[place] ?? tokens.ids[place])),
    h("span", { class: "quiet" }, `${at}, id ${tokens.ids[place]}, ${tokens.origin[place]}`),
    figures,
  ];
}

function hint() {
  return h("span", { class: "quiet" }, "Point at a token, or use the arrow keys, to see its values.");
}

function legend(entries) {
  const items = entries.map(([tone, strength, words]) => {
    const style = tone ? { "--tone": `var(--${tone})`, "--strength": `${100 * strength}%` } : {};
    return h("li", {}, h("span", { class: "key", style }), words);
  });
  return h("ul", { class: "legend" }, items);
}

function absent(missing, tokens) {
  const lines = Object.entries(missing).filter(([name]) => name in OVERLAYS || (name === "text" && !tokens.text));
  return lines.length ? h("p", { class: "quiet absent" }, lines.map(([, sentence]) => sentence).join("; ")) : null;
}
