// The page of trajectories that is shown: rows as they come in, and the ways on and back.

import { abandoned, whole } from "./api.js";
import { wanted } from "./filter.js";

/** The rows of one page; `told()` is called whenever more is known. */
export class List {
  constructor(told) {
    this.told = told;
    this.key = null;
    this.waiting = null;
    this.back = new Map(); // cursor -> the cursor of the page before
    this.clear();
  }

  clear() {
    [this.rows, this.total, this.next, this.complete, this.error, this.indexed] = [[], null, null, false, null, null];
  }

  /** Whether another page than the one shown is meant. */
  wants(query, source) {
    return JSON.stringify(wanted(query, source)) !== this.key;
  }

  /** Asks for the page of these settings, unless it is there. */
  async show(query, source) {
    if (!this.wants(query, source)) return;
    const parameters = wanted(query, source);
    this.key = JSON.stringify(parameters);
    await this.load(parameters);
  }

  async load(parameters) {
    this.waiting?.abort();
    this.waiting = new AbortController();
    this.clear();
    this.told();
    try {
      await whole("trajectories", parameters, this.waiting.signal, (answer) => this.take(answer, parameters));
    } catch (error) {
      if (abandoned(error)) return;
      this.error = error;
      this.told();
    }
  }

  take(answer, parameters) {
    [this.rows, this.total, this.next, this.complete] = [answer.rows, answer.total, answer.next, answer.complete];
    this.indexed = answer.indexed;
    if (answer.next) this.back.set(answer.next, parameters.cursor ?? null);
    this.told();
  }

  /** Asks again for what is shown. */
  refresh() {
    this.load(JSON.parse(this.key));
  }

  /** The rows that are trajectories. */
  get readable() {
    return this.rows.filter((row) => !row.broken);
  }

  stop() {
    this.waiting?.abort();
  }
}
