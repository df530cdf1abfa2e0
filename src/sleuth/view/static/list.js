// The current page of trajectories, with paging.

import { abandoned, whole } from "./api.js";
import { wanted } from "./filter.js";

/** The rows of one page; `told()` is called on new data. */
export class List {
  constructor(told) {
    this.told = told;
    this.key = null;
    this.waiting = null;
    this.back = new Map(); // cursor -> cursor of the previous page
    this.clear();
  }

  clear() {
    [this.rows, this.total, this.next, this.complete, this.error, this.indexed] = [[], null, null, false, null, null];
  }

  /** Whether the query asks for another page. */
  wants(query, source) {
    return JSON.stringify(wanted(query, source)) !== this.key;
  }

  /** Load the page of a query unless already loaded. */
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

  /** Reload the current page. */
  refresh() {
    this.load(JSON.parse(this.key));
  }

  /** Valid rows. */
  get readable() {
    return this.rows.filter((row) => !row.broken);
  }

  stop() {
    this.waiting?.abort();
  }
}
