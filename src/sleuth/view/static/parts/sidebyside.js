// Runs side by side: results and differing settings.

import { h } from "../element.js";
import { live } from "../library.js";
import { duration, interval, short } from "../number.js";
import { link } from "../route.js";
import { liveness } from "./liveness.js";
import { table } from "./table.js";

const FIGURES = [
  ["reward", ({ record }) => short(record.last("reward/mean"))],
  ["EM, sampled", ({ record }) => short(record.last("episode/em"))],
  ["EM, held out", ({ record }) => heldOut(record)],
  ["searches", ({ record }) => short(record.last("episode/searches"))],
  ["tokens", ({ record }) => short(record.last("episode/tokens"))],
  ["time", ({ record }) => duration(record.times.at(-1))],
];

/** One row per run: { run (of the library), record, whole (with manifest and summary, or null) }. */
export function sideBySide(entries) {
  const heads = ["run", "state", ...["steps", ...FIGURES.map(([name]) => name), ""].map((name) => [name, "figure"])];
  return table("wide beside", heads, entries.map(row));
}

/** Settings in which the runs differ; null if none. */
export function differences(entries) {
  const trees = entries.map(({ whole }) => new Map(leaves(whole?.manifest?.config ?? {})));
  const names = [...new Set(trees.flatMap((tree) => [...tree.keys()]))].filter((name) => name !== "name");
  const differing = names.filter((name) => new Set(trees.map((tree) => tree.get(name))).size > 1);
  if (entries.length < 2 || !differing.length) return null;
  const lines = differing.map((name) =>
    h(
      "tr",
      {},
      h("th", {}, name),
      trees.map((tree) => h("td", {}, tree.get(name) ?? "–")),
    ),
  );
  const heads = ["setting", ...entries.map(({ run }) => [[swatch(run), run.name], null])];
  const title = h("summary", {}, `Settings that differ (${differing.length})`);
  return h("details", { class: "block", open: differing.length <= 6 }, title, table(null, heads, lines));
}

/** Colour swatch of a run. */
export function swatch(run) {
  return h("span", { class: "swatch", style: { background: `var(--c${run.place % 6})` } });
}

function row(entry) {
  const { run, record } = entry;
  return h(
    "tr",
    {},
    h("th", {}, swatch(run), run.name),
    h("td", {}, live(run) ? liveness(run) : run.state),
    h("td", { class: "figure" }, short(record.columns.step.at(-1) ?? 0)),
    FIGURES.map(([, figure]) => h("td", { class: "figure" }, figure(entry))),
    h("td", { class: "figure" }, h("a", { href: link("trajectories", { run: run.id }) }, "trajectories")),
  );
}

function heldOut(record) {
  const values = record.columns["evaluate/em"]?.filter((value) => value !== null) ?? [];
  if (!values.length) return "–";
  const [value, low, high] = ["evaluate/em", "evaluate/em_low", "evaluate/em_high"].map((name) => record.last(name));
  const last = low === null ? short(value) : interval({ value, low, high });
  return values.length > 1 ? `${short(values[0])} → ${last}` : last;
}

function* leaves(tree, prefix = "") {
  for (const [name, value] of Object.entries(tree)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) yield* leaves(value, `${prefix}${name}.`);
    else yield [`${prefix}${name}`, typeof value === "string" ? value : JSON.stringify(value)];
  }
}
