// Traces of a chart: the values of each run, faint behind a smoothed curve.

import { look, plain } from "./parts/chart.js";
import { smoothed } from "./smoothing.js";
import { colour } from "./theme.js";

const MOST_MARKS = 80;
const PARTS = {
  generate: "generate",
  search: "wait for searches",
  reward: "reward",
  score: "score",
  pack: "pack",
  train: "forward and backward",
  optimiser: "optimiser",
  publish: "publish weights",
  write: "write trajectories",
  save: "save",
};

/** One metric of several runs; x is "step" or "time", `window` the smoothing window in steps, `of` as in column. */
export function trend(records, metric, { x, window, of }) {
  return records.flatMap((record) => {
    const found = record.column(metric, x, of);
    if (!found.x.length) return [];
    const line = { ...look(record.place), width: 1.75 };
    const main = {
      ...named(record),
      x: found.x,
      y: smoothed(found.y, window),
      mode: found.x.length > 1 ? "lines" : "markers",
      line,
      marker: { color: line.color, size: 6 },
    };
    return window > 1 ? [faint(found, line), main] : [main];
  });
}

/** Held-out figures with intervals, by step. */
export function heldOut(records, measure, { x }) {
  const key = `evaluate/${measure}`;
  return records.flatMap((record) => {
    const found = record.column(key, x);
    if (!found.x.length) return [];
    const bound = (name) =>
      found.places.map((place, each) =>
        Math.abs((record.columns[`${key}_${name}`]?.[place] ?? found.y[each]) - found.y[each]),
      );
    const { color } = look(record.place);
    return [
      {
        ...named(record),
        name: plain(`${record.name}, held out`),
        x: found.x,
        y: found.y,
        mode: "lines+markers",
        line: { color, width: 1, dash: "dot" },
        marker: { color, size: 7, symbol: "diamond" },
        error_y: {
          type: "data",
          symmetric: false,
          array: bound("high"),
          arrayminus: bound("low"),
          color,
          thickness: 1,
          width: 3,
        },
      },
    ];
  });
}

/** Step time by part: over the steps of one run, or means of several runs. */
export function parts(records, { x }) {
  const names = [...new Set(records.flatMap((record) => record.parts))];
  if (records.length === 1) return names.map((name, place) => layer(records[0], name, place, x));
  return names.map((name, place) => bars(records, name, place));
}

/** Names of the parts, in colour order. */
export function partNames(records) {
  return [...new Set(records.flatMap((record) => record.parts))].map((name) => PARTS[name] ?? words(name));
}

/** Guard events as markers with a vertical line. */
export function marks(records, { x }) {
  const spoken = records.flatMap((record) =>
    record.events.map((event) => ({ record, event, x: record.position(event.step, x) })),
  );
  const shown = spoken.filter((each) => each.x !== null).slice(-MOST_MARKS);
  const trace = {
    x: shown.map((each) => each.x),
    y: shown.map(() => 1),
    yaxis: "y2",
    mode: "markers",
    type: "scatter",
    name: "guard",
    marker: { symbol: "triangle-down", size: 8, color: shown.map((each) => look(each.record.place).color) },
    text: shown.map(({ record, event }) => plain(`${record.name}: ${words(event.guard)}, ${event.action}`)),
    hovertemplate: "%{text}<extra></extra>",
  };
  const lines = shown.map((each) => ({
    type: "line",
    x0: each.x,
    x1: each.x,
    yref: "paper",
    y0: 0,
    y1: 1,
    layer: "below",
    line: { color: colour("bad"), width: 1, dash: "dot" },
    opacity: 0.55,
  }));
  return { traces: shown.length ? [trace] : [], lines };
}

/** A metric name as words. */
export function words(name) {
  return String(name).replaceAll("_", " ").replaceAll("/", " ");
}

function layer(record, name, place, x) {
  const found = record.seconds(name, x);
  return {
    type: "scatter",
    mode: "none",
    stackgroup: "parts",
    name: plain(PARTS[name] ?? words(name)),
    fillcolor: colour(`c${place % 6}`, 0.75),
    x: found.x,
    y: found.y,
    hovertemplate: "%{y:.3~g} s",
  };
}

function bars(records, name, place) {
  const mean = ({ y }) => (y.length ? y.reduce((sum, value) => sum + value, 0) / y.length : 0);
  const said = plain(PARTS[name] ?? words(name));
  return {
    type: "bar",
    orientation: "h",
    name: said,
    marker: { color: colour(`c${place % 6}`, 0.75) },
    y: records.map((record) => plain(record.name)),
    x: records.map((record) => mean(record.seconds(name))),
    hovertemplate: `${said}: %{x:.3~g} s<extra></extra>`,
  };
}

function faint({ x, y }, line) {
  return { x, y, mode: "lines", line: { ...line, width: 1 }, opacity: 0.25, hoverinfo: "skip", type: "scatter" };
}

function named(record) {
  return { type: "scatter", name: plain(record.name), hovertemplate: "%{y:.4~g}", connectgaps: false };
}
