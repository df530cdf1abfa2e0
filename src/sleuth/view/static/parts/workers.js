// Rollout workers of a run on a cluster: their time by state, episodes, losses, and the weights sent to them.

import { h } from "../element.js";
import { counted, duration, short, whole } from "../number.js";
import { swatch } from "./sidebyside.js";
import { table } from "./table.js";

const STATES = [
  ["busy", "busy", "c0"],
  ["waiting_search", "waiting for search", "c1"],
  ["waiting_weights", "waiting for weights", "c2"],
  ["idle", "idle", "line"],
];
const HEADS = [
  "worker",
  "node",
  "time by state",
  ...STATES.map(([, name]) => [name, "figure"]),
  ["episodes", "figure"],
];

/** One panel for each run that recorded workers. */
export function workerPanels(entries) {
  return entries.filter(({ record }) => record.columns["cluster/workers"]).map(panel);
}

function panel({ run, record }) {
  const { steps, workers } = record.workers ?? { steps: null, workers: [] };
  const span = steps ? `, steps ${steps[0]} to ${steps[1]}` : "";
  const items = STATES.map(([, name, tone]) => h("li", {}, colour(tone), name));
  return [
    h("h2", {}, swatch(run), `Rollout workers of ${run.name}${span}`),
    h("p", { class: "quiet" }, figures(record)),
    h("ul", { class: "legend" }, items),
    table("wide", HEADS, [together(record, workers), ...workers].map(row)),
  ];
}

/** Totals over all steps. */
function figures(record) {
  const sum = (name) => record.column(name).y.reduce((total, value) => total + value, 0);
  const episodes = ["asked", "finished", "retried", "lost"].map((name) => whole(sum(`cluster/${name}`)));
  const [asked, finished, retried, lost] = episodes;
  return [
    `${counted(record.last("cluster/workers"), "worker")} up, ${whole(sum("cluster/workers_lost"))} lost, ` +
      `${whole(sum("cluster/workers_restarted"))} restarted`,
    `${asked} episodes asked, ${finished} finished, ${retried} retried, ${lost} lost`,
    `weights: ${duration(sum("weights/seconds"))}, ${bytes(sum("weights/bytes"))}`,
  ].join(" · ");
}

/** All workers as one: sums, or the mean shares of a run that did not record each worker. */
function together(record, workers) {
  const sum = (name) => workers.reduce((total, worker) => total + (worker[name] ?? 0), 0);
  const mean = (name) => {
    const { y } = record.column(`cluster/${name}`);
    return y.length ? y.reduce((total, value) => total + value, 0) / y.length : 0;
  };
  const found = STATES.map(([state]) => [state, workers.length ? sum(state) : mean(state)]);
  return { number: null, node: null, episodes: workers.length ? sum("episodes") : null, ...Object.fromEntries(found) };
}

function row(worker) {
  const total = STATES.reduce((sum, [state]) => sum + (worker[state] ?? 0), 0);
  const share = (state) => (total ? (worker[state] ?? 0) / total : 0);
  const bars = STATES.map(([state, name, tone]) =>
    h("span", {
      title: `${name}: ${percent(share(state))}`,
      style: { width: percent(share(state)), background: `var(--${tone})` },
    }),
  );
  return h(
    "tr",
    { class: worker.number === null ? "total" : null },
    h("th", {}, worker.number ?? "all"),
    h("td", {}, worker.node ?? ""),
    h("td", {}, h("div", { class: "states" }, bars)),
    STATES.map(([state]) => h("td", { class: "figure" }, total ? percent(share(state)) : "–")),
    h("td", { class: "figure" }, short(worker.episodes)),
  );
}

function colour(tone) {
  return h("span", { class: "swatch", style: { background: `var(--${tone})` } });
}

function percent(value) {
  return `${(100 * value).toFixed(1)}%`;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const place = Math.min(units.length - 1, count ? Math.floor(Math.log10(count) / 3) : 0);
  return `${short(count / 1000 ** place)} ${units[place]}`;
}
