// Runs and evaluations found by the server, newest first.

import { ask } from "./api.js";

const FRESH = 180; // seconds since the last write within which an unfinished run counts as live

/** The library; each run has its place by name, which determines its colour. */
export async function library(signal) {
  const found = await ask("library", {}, signal);
  const runs = [...found.runs].sort((first, second) => second.written - first.written);
  const names = runs.map((run) => run.id).sort();
  const placed = runs.map((run) => ({ ...run, place: names.indexOf(run.id) }));
  return { ...found, runs: distinct(placed), evaluations: distinct(found.evaluations) };
}

/** Command that starts a first run in the viewed folder. */
export function firstRun({ folders }) {
  return `sleuth train quickstart --out ${folders[0]}/quickstart-1`;
}

/** Entries with the same name are shown with their folder. */
function distinct(entries) {
  const names = entries.map(({ name }) => name);
  const again = new Set(names.filter((name, place) => names.indexOf(name) !== place));
  return entries.map((each) => (again.has(each.name) ? { ...each, name: each.id } : each));
}

/** Whether an entry is probably being written now. */
export function live({ state, age_seconds: age }) {
  return state === "open" && age < FRESH;
}
