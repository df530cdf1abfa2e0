// The record of a run as it grows: columns of metrics and what its guards said, asked for piece by piece.

import { ask } from "./api.js";

const WHOLE = "time/step";
// The whole, and what an episode takes beside others, are no parts of a step's time.
const NO_PARTS = new Set(["step", "episodes"]);

/** What is known of one run; `place` is its place among all, which gives it its colour. */
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
  }

  /** Reads what was written since; true where there was something. */
  async read(signal) {
    let grown = false;
    for (let more = true; more;) {
      const part = await ask("metrics", { run: this.id, cursor: this.cursor }, signal);
      if (part.reset) this.forget();
      grown ||= part.reset || part.columns.step?.length > 0 || part.events.length > 0;
      this.append(part);
      [this.cursor, this.state, more] = [part.cursor, part.state, part.more];
    }
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

  /** A metric where it is known: its x, by step or time, and its values. */
  column(name, x = "step") {
    const values = this.columns[name] ?? [];
    const places = values.map((value, place) => (value === null ? -1 : place)).filter((place) => place >= 0);
    const along = x === "time" ? this.times : this.columns.step;
    return { x: places.map((place) => along[place]), y: places.map((place) => values[place]), places };
  }

  /** Where a step stands on x. */
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

  /** The parts of a step's time, the longest first. */
  get parts() {
    const names = this.metrics.filter((name) => name.startsWith("time/")).map((name) => name.slice(5));
    const spent = (name) => this.seconds(name).y.reduce((sum, value) => sum + value, 0);
    return names.filter((name) => !NO_PARTS.has(name)).sort((first, second) => spent(second) - spent(first));
  }

  /** The seconds of a part; waiting for searches happens while episodes are generated, and is taken out of that. */
  seconds(part, x = "step") {
    const found = this.column(`time/${part}`, x);
    const searched = this.columns["time/search"];
    if (part !== "generate" || !searched) return found;
    return { ...found, y: found.y.map((value, each) => Math.max(0, value - (searched[found.places[each]] ?? 0))) };
  }
}

function summed(seconds) {
  let total = 0;
  return seconds.map((each) => (total += each ?? 0));
}
