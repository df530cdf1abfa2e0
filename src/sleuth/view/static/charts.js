// The charts of the runs page and their axes.

import { heldOut, marks, parts, trend } from "./curves.js";
import { axis } from "./parts/chart.js";

const UNITS = [
  [7200, 3600, "h"],
  [180, 60, "min"],
  [0, 1, "s"],
];

// In display order: title, metric and note; `held` is the
// held-out measure shown with it, `low` the start of its axis, `span` the minimum range of its axis, `of` the
// metrics whose sum it is a share of, `only` a metric without which it is not shown.
export const CHARTS = [
  { key: "reward", title: "Reward", metric: "reward/mean", note: "mean of a step" },
  { key: "em", title: "Exact match", metric: "episode/em", held: "em", note: "sampled; held out ◆", low: 0 },
  {
    key: "searches",
    title: "Searches",
    metric: "episode/searches",
    held: "searches",
    note: "per question; held out ◆",
    low: 0,
  },
  { key: "entropy", title: "Entropy", metric: "policy/entropy", note: "nats per token", low: 0 },
  { key: "kl", title: "KL", metric: "policy/kl", note: "to the reference, per token" },
  { key: "ratio", title: "Ratio", metric: "policy/ratio", note: "trainer / engine, mean", span: 0.002 },
  { key: "clipped", title: "Clipped", metric: "policy/clipped", note: "share of tokens", low: 0 },
  { key: "length", title: "Length", metric: "episode/tokens", note: "sampled tokens per response", low: 0 },
  { key: "norm", title: "Gradient norm", metric: "policy/gradient_norm", note: "before clipping", low: 0 },
  { key: "calls", title: "Calls", metric: "gateway/calls", note: "of an outside agent, per step", low: 0 },
  { key: "segments", title: "Segments", metric: "gateway/segments", note: "of an outside agent, per step", low: 0 },
  { key: "forks", title: "Forks", metric: "gateway/forks", note: "of an outside agent, per step", low: 0 },
  {
    key: "staleness",
    title: "Staleness",
    metric: "staleness/mean",
    note: "weight versions, mean",
    low: 0,
    only: "buffer/size",
  },
  { key: "buffer", title: "Buffer", metric: "buffer/size", note: "finished groups that wait", low: 0 },
  {
    key: "trainer-waiting",
    title: "Trainer waiting",
    metric: "time/waiting_for_rollouts",
    of: ["time/step"],
    note: "for rollouts, share of a step",
    low: 0,
    only: "buffer/size",
  },
  {
    key: "rollouts-waiting",
    title: "Rollouts waiting",
    metric: "time/rollouts_waiting",
    of: ["time/rollouts_waiting", "time/episodes"],
    note: "for the trainer, share of time",
    low: 0,
  },
  { key: "step-time", title: "Step time", metric: "time/step", note: "seconds", low: 0 },
];
export const TIME = { key: "time", title: "Step time by part", note: "seconds" };

/** A chart of another metric. */
export function other(metric) {
  return { key: metric, title: metric, metric, note: "" };
}

/** Whether any run recorded the metric of a chart. */
export function known(chart, records) {
  const recorded = (record, name) => record.columns[name]?.some((value) => value !== null);
  const wanted = [chart.metric, `evaluate/${chart.held}`];
  return records.some(
    (record) => wanted.some((name) => recorded(record, name)) && (!chart.only || recorded(record, chart.only)),
  );
}

/** Traces and axes of a chart; `view` has x, window, from and to. */
export function drawing(chart, records, view) {
  const guards = marks(records, view);
  const traces = [
    ...trend(records, chart.metric, { ...view, of: chart.of }),
    ...(chart.held ? heldOut(records, chart.held, view) : []),
    ...guards.traces,
  ];
  const scaled = along(traces, view, records);
  const y = axis({ fixedrange: true, rangemode: chart.low === 0 ? "tozero" : "normal", ...roomy(traces, chart.span) });
  const layout = { xaxis: scaled.axis, yaxis: y, yaxis2: hidden(), shapes: guards.lines.map(scaled.shape) };
  return { traces: scaled.traces, layout };
}

/** Traces and axes of the step time chart. */
export function timeDrawing(records, view) {
  const traces = parts(records, view);
  if (records.length > 1) {
    const size = { barmode: "stack", bargap: 0.35, hovermode: "closest" };
    return {
      traces,
      layout: {
        ...size,
        xaxis: axis({ ticksuffix: " s", fixedrange: true }),
        yaxis: axis({ autorange: "reversed", fixedrange: true }),
      },
    };
  }
  const scaled = along(traces, view, records);
  return {
    traces: scaled.traces,
    layout: { xaxis: scaled.axis, yaxis: axis({ fixedrange: true, rangemode: "tozero" }) },
  };
}

/** Common x axis, and the traces in its unit: hours for long runs. */
function along(traces, { x, from, to }, records) {
  const ends = records
    .map((record) => (x === "time" ? record.times : record.columns.step))
    .filter((each) => each.length);
  const last = Math.max(0, ...ends.map((each) => each.at(-1)));
  const first = x === "time" ? 0 : Math.min(last, ...ends.map((each) => each[0]));
  const [, seconds, unit] = x === "time" ? UNITS.find(([least]) => last >= least) : [0, 1, null];
  const brought = (value) => value / seconds;
  const room = 0.02 * (brought(last - first) || 1);
  const range = from === null ? [brought(first) - room, brought(last) + room] : [from, to];
  return {
    traces: traces.map((trace) => ({ ...trace, x: trace.x.map(brought) })),
    axis: axis({
      range,
      autorange: false,
      ...(unit ? { ticksuffix: ` ${unit}`, hoverformat: ".2~f" } : { hoverformat: "d" }),
    }),
    shape: (line) => ({ ...line, x0: brought(line.x0), x1: brought(line.x1) }),
  };
}

/** Range for values within `span`, so that rounding noise stays small. */
function roomy(traces, span) {
  const values = traces
    .filter((trace) => !trace.yaxis)
    .flatMap((trace) => trace.y)
    .filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return span && high - low < span
    ? { range: [(low + high - span) / 2, (low + high + span) / 2], autorange: false }
    : {};
}

function hidden() {
  return { overlaying: "y", range: [0, 1.02], visible: false, fixedrange: true };
}
