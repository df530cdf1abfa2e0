// Controls of the curves: x axis, smoothing and additional charts.

import { CHARTS } from "../charts.js";
import { h, redraw } from "../element.js";
import { adjust, change, list } from "../route.js";
import { menu, named, segments } from "./choice.js";

export const WINDOWS = [1, 3, 5, 10, 20, 50]; // smoothing windows in steps
const ALONG = [
  ["step", "step"],
  ["time", "time"],
];

/** The controls. */
export class CurveControls {
  constructor(area) {
    this.area = area;
    this.drawnFor = null;
  }

  /** Show the settings of `view`; `metrics` are those recorded by the selected runs. */
  show(view, metrics) {
    const shown = (name) => CHARTS.some((each) => each.metric === name) || view.more.includes(name);
    const others = [...new Set(metrics)].filter((name) => !shown(name)).sort();
    const key = JSON.stringify([view.x, view.from !== null, others]);
    // Keep the slider element while it is dragged.
    if (key !== this.drawnFor) redraw(this.area, controls(view, others));
    this.drawnFor = key;
    this.area.querySelector("[type=range]").value = WINDOWS.indexOf(view.window);
    this.area.querySelector(".window").textContent = view.window > 1 ? `mean of ${view.window} steps` : "each step";
  }

  /** Show a connection error, or clear it with null. */
  lost(sentence) {
    if (sentence === null) delete this.area.dataset.lost;
    else this.area.dataset.lost = sentence;
  }
}

function controls(view, others) {
  const whole = () => change({ from: null, to: null });
  const add = (name) => name && change({ more: list.join([...view.more, name]) });
  const offered = [["", "Add a chart…"], ...others.map((name) => [name, name])];
  return h(
    "div",
    { class: "tools" },
    named(
      "x",
      segments("x by", ALONG, view.x, (x) => change({ x, from: null, to: null })),
    ),
    named("smooth", slider()),
    h("span", { class: "figure quiet window" }),
    view.from !== null && h("button", { class: "button", onclick: whole }, "Whole run"),
    h("span", { class: "end" }, menu("Add a chart", offered, "", add)),
  );
}

function slider() {
  return h("input", {
    type: "range",
    min: 0,
    max: WINDOWS.length - 1,
    step: 1,
    "aria-label": "Smoothing",
    oninput: (event) => adjust({ smooth: WINDOWS[Number(event.target.value)] }),
  });
}
