// What the server found below its folders: runs and evaluations, newest first.

import { ask } from "./api.js";

const FRESH = 180; // seconds within which a run that is not finished counts as being written

/** The library, with the place of each run among all of them by name, from which its colour follows. */
export async function library(signal) {
  const found = await ask("library", {}, signal);
  const runs = [...found.runs].sort((first, second) => second.written - first.written);
  const names = runs.map((run) => run.id).sort();
  const placed = runs.map((run) => ({ ...run, place: names.indexOf(run.id) }));
  return { ...found, runs: distinct(placed), evaluations: distinct(found.evaluations) };
}

/** The command that makes a first run where the viewer looks. */
export function firstRun({ folders }) {
  return `sleuth train quickstart --out ${folders[0]}/quickstart-1`;
}

/** Entries of one name are called by where they lie: two runs of a name could not be told apart. */
function distinct(entries) {
  const names = entries.map(({ name }) => name);
  const again = new Set(names.filter((name, place) => names.indexOf(name) !== place));
  return entries.map((each) => (again.has(each.name) ? { ...each, name: each.id } : each));
}

/** Whether something is being written at this moment, as far as one can tell. */
export function live({ state, age_seconds: age }) {
  return state === "open" && age < FRESH;
}
