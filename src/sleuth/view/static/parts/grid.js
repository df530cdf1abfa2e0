// The charts of the selected runs, created once and redrawn on new data.

import { CHARTS, TIME, drawing, known, other, timeDrawing } from "../charts.js";
import { partNames } from "../curves.js";
import { h, replace } from "../element.js";
import { adjust, change, list } from "../route.js";
import { chart } from "./chart.js";
import { empty, failed } from "./state.js";

/** The charts. */
export class Grid {
  constructor(area) {
    this.area = area;
    this.charts = new Map(); // key -> chart
  }

  /** Draw the runs; `view` has x, window, from, to and more. */
  draw(records, view) {
    const recorded = (each) => known(each, records);
    const timed = records.some((record) => record.parts.length) ? [TIME] : [];
    const wanted = [...CHARTS.filter(recorded), ...timed, ...view.more.map(other).filter(recorded)];
    if (!wanted.length)
      return this.say(empty("No metrics yet", "They appear after the first step."));
    this.lay(wanted.map((each) => this.held(each, view).figure));
    for (const each of wanted) this.put(each, records, view);
    return undefined;
  }

  /** Show a message instead of charts. */
  say(...words) {
    this.clear();
    replace(this.area, ...words);
  }

  clear() {
    for (const made of this.charts.values()) made.remove();
    this.charts.clear();
  }

  lay(figures) {
    const there = [...this.area.children];
    if (figures.length !== there.length || figures.some((figure, place) => there[place] !== figure))
      replace(this.area, figures);
  }

  put(each, records, view) {
    const { figure, draw } = this.charts.get(each.key);
    const { traces, layout } = each === TIME ? timeDrawing(records, view) : drawing(each, records, view);
    if (each === TIME) legend(figure, records);
    draw(traces, layout).catch((error) => this.say(failed(error)));
  }

  held(each, view) {
    if (!this.charts.has(each.key)) this.charts.set(each.key, made(each, view.more));
    return this.charts.get(each.key);
  }
}

function made(each, more) {
  const zoomed = (from, to) => adjust({ from: from && from.toPrecision(6), to: to && to.toPrecision(6) });
  const drawn = chart(each.title, each.note, zoomed);
  drawn.figure.dataset.chart = each.key;
  if (more.includes(each.key)) {
    const remove = () => change({ more: list.join(more.filter((name) => name !== each.key)) });
    drawn.figure.querySelector("figcaption").append(h("button", { class: "plain", onclick: remove }, "remove"));
  }
  return drawn;
}

function legend(figure, records) {
  figure.querySelector(".legend")?.remove();
  const items = partNames(records).map((name, place) =>
    h("li", {}, h("span", { class: "swatch", style: { background: `var(--c${place % 6})` } }), name),
  );
  figure.querySelector("figcaption").append(h("ul", { class: "legend" }, items));
}
