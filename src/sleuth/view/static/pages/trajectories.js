// Trajectories: a list to choose from, and one that is read.

import { ask } from "../api.js";
import { h, redraw, replace } from "../element.js";
import { none } from "../filter.js";
import { bind } from "../keyboard.js";
import { firstRun, library } from "../library.js";
import { List } from "../list.js";
import { repeat } from "../live.js";
import { counted, whole } from "../number.js";
import { filters } from "../parts/filters.js";
import { rowList } from "../parts/rows.js";
import { empty, failed, waiting } from "../parts/state.js";
import { change } from "../route.js";
import { STOPS } from "../verdict.js";
import { VIEWS, reader } from "./reader.js";

export function trajectories(place) {
  const areas = Object.fromEntries(["filters", "found", "reader"].map((name) => [name, h("section", { class: name })]));
  areas.reader.tabIndex = -1;
  const ending = new AbortController();
  const list = new List(() => draw());
  const reading = reader(areas.reader);
  const state = { shelf: null, source: null, query: new URLSearchParams(), about: null, newest: null, cursor: null };

  async function show(query) {
    if (!state.shelf) {
      replace(place, waiting());
      state.shelf = await library();
    }
    const source = sourced(query, state.shelf);
    state.query = query;
    if (!source) {
      replace(
        place,
        empty(
          "No trajectories yet",
          "Trajectories appear here once a run has written some. To start one:",
          firstRun(state.shelf),
        ),
      );
      return;
    }
    if (!areas.reader.isConnected)
      replace(place, areas.filters, h("div", { class: "reading" }, areas.found, areas.reader));
    if (source.key !== state.source?.key) state.about = source.run ? await ask("run", { run: source.run }) : null;
    state.source = source;
    layout();
    redraw(areas.filters, filters(query, state.shelf, source, state.about?.stops ?? Object.keys(STOPS)));
    draw();
    await Promise.all([listed(query, source), reading.show(query, source)]);
  }

  /** The list is asked for where its settings are others; what a run wrote since then is offered, and not lost. */
  async function listed(query, source) {
    if (list.wants(query, named(source))) state.newest = state.about?.steps.at(-1);
    await list.show(query, named(source));
  }

  function layout() {
    const { query } = state;
    place.classList.toggle("is-open", query.has("at"));
    place.classList.toggle("is-wide", ["group", "steps"].includes(query.get("view")));
  }

  function draw() {
    if (!state.source) return;
    const { query, source } = state;
    const at = query.get("at");
    redraw(areas.found, head(), body(at, Boolean(source.evaluation)), pager());
    areas.found.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    mark(false);
  }

  function head() {
    const far =
      list.indexed && list.indexed.rows < list.indexed.of
        ? `, ${whole(list.indexed.rows)} of ${whole(list.indexed.of)} indexed`
        : "";
    const many =
      list.total === null
        ? list.rows.length
          ? "found so far"
          : ""
        : counted(list.total, "trajectory", "trajectories");
    const order = state.query.get("order") === "old" ? "oldest first" : "newest first";
    const turned = () => change({ order: state.query.get("order") === "old" ? null : "old", cursor: null, page: null });
    return h(
      "header",
      { class: "foundhead" },
      h("span", { class: "figure", role: "status" }, `${many}${list.complete ? "" : far}`),
      // The rows of an evaluation have one order.
      state.source.run && h("button", { class: "plain", onclick: turned }, order),
      fresh(),
    );
  }

  function fresh() {
    const newest = state.about?.steps.at(-1);
    if (newest === undefined || newest === state.newest) return null;
    const take = () => {
      state.newest = newest;
      list.refresh();
    };
    return h("button", { class: "button fresh", onclick: take }, `Show step ${newest}`);
  }

  function body(at, evaluation) {
    if (list.error) return failed(list.error, () => list.refresh());
    if (list.rows.length) return rowList(list.rows, at, evaluation);
    if (!list.complete) return waiting();
    if (list.next) return h("p", { class: "quiet" }, "No match so far; the next page continues the search.");
    return [
      empty("No trajectory matches", "Remove a filter, or choose another run."),
      h("button", { class: "plain", onclick: () => change(none()) }, "clear filters"),
    ];
  }

  function pager() {
    const { query } = state;
    const page = Number(query.get("page") ?? 1);
    if (!list.next && page === 1) return null;
    const before = list.back.has(query.get("cursor")) ? list.back.get(query.get("cursor")) : null;
    const go = (cursor, number) => () => change({ cursor, page: number > 1 ? number : null });
    return h(
      "footer",
      { class: "pager" },
      h(
        "button",
        { class: "button", disabled: page === 1, onclick: before === null ? go(null, 1) : go(before, page - 1) },
        before === null && page > 2 ? "First" : "Previous",
      ),
      h("span", { class: "quiet figure" }, `page ${page}`),
      h("button", { class: "button", disabled: !list.next, onclick: go(list.next, page + 1) }, "Next"),
    );
  }

  function move(by) {
    const rows = list.readable;
    const now = rows.findIndex((row) => row.at === (state.query.get("at") ?? state.cursor));
    const next = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
    if (!next) return;
    state.cursor = next.at;
    if (state.query.has("at")) change({ at: next.at });
    else mark(true);
  }

  function mark(seen) {
    for (const row of areas.found.querySelectorAll(".row")) {
      const on = row.dataset.at === state.cursor && !state.query.has("at");
      row.classList.toggle("cursor", on);
      if (on && seen) row.scrollIntoView({ block: "nearest" });
    }
  }

  async function look() {
    if (!state.source) return began();
    if (state.about?.state !== "open") return;
    const about = await ask("run", { run: state.source.run }).catch(() => state.about);
    if (about.steps.at(-1) === state.about.steps.at(-1)) return;
    state.about = about;
    areas.found.querySelector(".foundhead")?.replaceWith(head());
  }

  /** Shows the first run as soon as there is one; what fails is asked for again at the next look. */
  async function began() {
    const shelf = await library(ending.signal).catch(() => null);
    if (!shelf || state.source || !sourced(state.query, shelf)) return;
    state.shelf = shelf;
    await show(state.query).catch(() => null);
  }

  function search() {
    const field = areas.filters.querySelector("[name=text]");
    field?.focus();
    field?.select();
  }

  const stops = [
    repeat(look, 3),
    bind([
      ["j", "next trajectory", () => move(1)],
      ["k", "previous trajectory", () => move(-1)],
      ["o", "open", () => change({ at: state.cursor ?? state.query.get("at") ?? list.readable[0]?.at })],
      ["/", "search the text of trajectories", search],
      ...VIEWS.map(([view, title, key]) => [key, `show: ${title.toLowerCase()}`, () => reading.turn(view)]),
      ["Escape", "back to the list", () => change(state.query.has("view") ? { view: null } : { at: null })],
    ]),
  ];
  const leave = () => {
    ending.abort();
    stops.forEach((stop) => stop());
    list.stop();
    reading.leave();
    place.classList.remove("is-open", "is-wide");
  };
  return { show, leave };
}

/** The run or evaluation that the address names, else the newest that has trajectories; null where there is none. */
function sourced(query, shelf) {
  const first = shelf.runs.find((run) => run.trajectory_files > 0) ?? shelf.runs[0];
  const evaluation = query.get("evaluation") ?? (query.has("run") || first ? null : (shelf.evaluations[0]?.id ?? null));
  const run = evaluation === null ? (query.get("run") ?? first?.id ?? null) : null;
  return run === null && evaluation === null ? null : { run, evaluation, key: `${run} ${evaluation}` };
}

function named({ run, evaluation }) {
  return { run, evaluation };
}
