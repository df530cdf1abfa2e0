// Metrics and guard events of a run, loaded incrementally.

import { ask } from "./api.js";

const WHOLE = "time/step";
// Not parts of the step time: the total, times per episode, and waiting, which contains or overlaps other parts.
const NO_PARTS = new Set(["step", "episodes", "waiting_for_rollouts", "rollouts_waiting"]);
const BESIDE = new Set(["search", "reward"]); // beside the step in asynchronous training
const ASYNC = "time/rollouts_waiting";

/** Data of one run; `place` determines its colour. */
export class Record {
  constructor(run, place) {
    this.id = run.id;
    this.name = run.name;
    this.place = place;
    this.cursor = null;
    this.state = run.state;
    this.forget();
  }

  forget() {
    this.columns = { step: [] };
    this.events = [];
    this.times = [];
    this.workers = null; // of a cluster, over the newest steps
  }

  /** Load new data; true if there was any. */
  async read(signal) {
    let grown = false;
    for (let more = true; more;) {
      const part = await ask("metrics", { run: this.id, cursor: this.cursor }, signal);
      if (part.reset) this.forget();
      grown ||= part.reset || part.columns.step?.length > 0 || part.events.length > 0;
      this.append(part);
      [this.cursor, this.state, more] = [part.cursor, part.state, part.more];
    }
    if (grown && this.columns["cluster/workers"]) this.workers = await ask("workers", { run: this.id }, signal);
    return grown;
  }

  append({ columns, events }) {
    const before = this.columns.step.length;
    const added = columns.step?.length ?? 0;
    for (const name of new Set([...Object.keys(this.columns), ...Object.keys(columns)])) {
      const known = (this.columns[name] ??= Array(before).fill(null));
      known.push(...(columns[name] ?? Array(added).fill(null)));
    }
    this.events.push(...events);
    this.times = summed(this.columns[WHOLE] ?? Array(before + added).fill(null));
  }

  /** Known values of a metric, with x by step or time; with `of`, as a share of the sum of other metrics. */
  column(name, x = "step", of = null) {
    const whole = (place) => of.reduce((sum, each) => sum + (this.columns[each]?.[place] ?? 0), 0);
    const share = (value, place) => (value !== null && whole(place) ? value / whole(place) : null);
    const values = (this.columns[name] ?? []).map((value, place) => (of ? share(value, place) : value));
    const places = values.map((value, place) => (value === null ? -1 : place)).filter((place) => place >= 0);
    const along = x === "time" ? this.times : this.columns.step;
    return { x: places.map((place) => along[place]), y: places.map((place) => values[place]), places };
  }

  /** x of a step. */
  position(step, x) {
    if (x === "step") return step;
    const place = this.columns.step.findIndex((each) => each >= step);
    return place < 0 ? null : this.times[place];
  }

  last(name) {
    return (this.columns[name] ?? []).findLast((value) => value !== null) ?? null;
  }

  get metrics() {
    return Object.keys(this.columns).filter(
      (name) => name !== "step" && this.columns[name].some((value) => value !== null),
    );
  }

  /** Parts of the step time, longest first. */
  get parts() {
    const names = this.metrics.filter((name) => name.startsWith("time/")).map((name) => name.slice(5));
    const spent = (name) => this.seconds(name).y.reduce((sum, value) => sum + value, 0);
    const isPart = (name) => !NO_PARTS.has(name) && !(this.columns[ASYNC] && BESIDE.has(name));
    return names.filter(isPart).sort((first, second) => spent(second) - spent(first));
  }

  /** Seconds of a part; generation excludes waiting for searches. */
  seconds(part, x = "step") {
    const found = this.column(`time/${part}`, x);
    const searched = this.columns["time/search"];
    if (part !== "generate" || !searched || this.columns[ASYNC]) return found;
    return { ...found, y: found.y.map((value, each) => Math.max(0, value - (searched[found.places[each]] ?? 0))) };
  }
}

function summed(seconds) {
  let total = 0;
  return seconds.map((each) => (total += each ?? 0));
}
