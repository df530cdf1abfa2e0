// Runs side by side: their figures, curves and events, live while they write.

import { abandoned, ask } from "../api.js";
import { h, redraw, replace } from "../element.js";
import { bind } from "../keyboard.js";
import { firstRun, library, live } from "../library.js";
import { repeat } from "../live.js";
import { CurveControls, WINDOWS } from "../parts/curvecontrols.js";
import { eventTable } from "../parts/events.js";
import { Grid } from "../parts/grid.js";
import { runList } from "../parts/runlist.js";
import { differences, sideBySide } from "../parts/sidebyside.js";
import { empty, failed, waiting } from "../parts/state.js";
import { workerPanels } from "../parts/workers.js";
import { Record } from "../record.js";
import { adjust, change, here, link, list } from "../route.js";
import { onTheme } from "../theme.js";

const AT_FIRST = 3; // runs shown where the address names none

export function runs(place) {
  const ending = new AbortController();
  const entries = new Map(); // id -> { run, record, whole }
  const failures = new Map(); // id -> why it cannot be read
  const areas = Object.fromEntries(
    ["side", "tools", "figures", "charts", "workers", "events"].map((name) => [name, h("section", { class: name })]),
  );
  const grid = new Grid(areas.charts);
  const tools = new CurveControls(areas.tools);
  let shelf = null;
  let view = null;
  let wanted = "";

  async function show(query) {
    if (!shelf) {
      replace(place, waiting());
      shelf = await library(ending.signal);
      replace(place, shelf.runs.length ? frame() : nothing(shelf));
    }
    if (!shelf.runs.length) return;
    view = settings(query, shelf);
    side();
    await load();
    draw();
  }

  function frame() {
    const choose = h(
      "details",
      { class: "chooser", open: window.innerWidth > 900 },
      h("summary", {}, "Runs"),
      areas.side,
    );
    return h(
      "div",
      { class: "split" },
      choose,
      h("div", { class: "content" }, areas.tools, areas.figures, areas.charts, areas.workers, areas.events),
    );
  }

  function side() {
    const field = h("input", {
      class: "field",
      type: "search",
      placeholder: "Filter runs",
      "aria-label": "Filter runs",
      value: wanted,
      oninput: (event) => {
        wanted = event.target.value;
        fill();
      },
    });
    const held = h("div", {});
    const fill = () => {
      const matching = shelf.runs.filter((run) => run.id.toLowerCase().includes(wanted.toLowerCase()));
      redraw(
        held,
        runList(matching, view.runs, (ids) => change({ runs: list.join(ids) || "none" })),
      );
    };
    fill();
    redraw(areas.side, field, held, broken(shelf));
  }

  async function load() {
    const missing = view.runs.filter((id) => !entries.has(id));
    if (missing.length && !areas.charts.childElementCount) replace(areas.charts, waiting("Reading metrics…"));
    await Promise.all(
      missing.map(async (id) => {
        const run = shelf.runs.find((each) => each.id === id);
        const record = new Record(run, run.place);
        const asked = Promise.all([ask("run", { run: id }, ending.signal), record.read(ending.signal)]);
        const [whole] = await asked.catch((error) => unread(id, error));
        if (whole) entries.set(id, { run, record, whole });
      }),
    );
  }

  /** One run that cannot be read must not take the others with it. */
  function unread(id, error) {
    if (abandoned(error)) throw error;
    failures.set(id, error);
    return [null];
  }

  function unreadable() {
    const named = view.runs.filter((id) => !entries.has(id) && failures.has(id));
    return named.map((id) => failed(failures.get(id), () => load().then(draw)));
  }

  function chosen() {
    return (view?.runs ?? []).filter((id) => entries.has(id)).map((id) => entries.get(id));
  }

  function draw() {
    const shown = chosen();
    tools.show(
      view,
      shown.flatMap(({ record }) => record.metrics),
    );
    if (!shown.length) {
      const lost = unreadable();
      grid.say(lost.length ? null : empty("No run selected", "Select one in the list to see its curves."));
      replace(areas.figures, lost);
      replace(areas.workers);
      replace(areas.events);
      return;
    }
    figures();
    replace(areas.workers, workerPanels(shown));
    replace(areas.events, h("h2", {}, "Guard events"), eventTable(shown));
    grid.draw(
      shown.map(({ record }) => record),
      view,
    );
  }

  function figures() {
    const shown = chosen();
    replace(areas.figures, unreadable(), sideBySide(shown), differences(shown));
  }

  /** Which of the runs are being written: a run that ends writes no more metrics to draw. */
  function standing() {
    return chosen()
      .map(({ run }) => `${run.state} ${live(run)}`)
      .join();
  }

  /** What is asked again and again may fail and come back: the page says so meanwhile. */
  async function trying(asking) {
    try {
      await asking();
      tools.lost(null);
    } catch (error) {
      if (!abandoned(error)) tools.lost(error.message);
    }
  }

  async function grow() {
    const open = chosen().filter(({ record }) => record.state === "open");
    const grown = await Promise.all(open.map(({ record }) => record.read(ending.signal)));
    if (grown.some(Boolean)) draw();
  }

  async function look() {
    shelf = await library(ending.signal);
    const before = standing();
    for (const run of shelf.runs) if (entries.has(run.id)) entries.get(run.id).run = run;
    if (standing() !== before) figures();
    if (!view && shelf.runs.length) await show(here().query, replace(place, frame()));
    else if (view && document.activeElement?.type !== "search") side();
  }

  /** A key that does nothing where no run is there. */
  const withRuns = (action) => () => view && action();

  const stops = [
    repeat(() => trying(grow), 2),
    repeat(() => trying(look), 8),
    onTheme(() => view && draw()),
    bind([
      [
        "/",
        "filter runs",
        withRuns(() => {
          place.querySelector(".chooser").open = true;
          place.querySelector(".side .field").focus();
        }),
      ],
      [
        "x",
        "x axis: steps or time",
        withRuns(() => change({ x: view.x === "step" ? "time" : "step", from: null, to: null })),
      ],
      [
        "s",
        "cycle through smoothing windows",
        withRuns(() => adjust({ smooth: WINDOWS[(WINDOWS.indexOf(view.window) + 1) % WINDOWS.length] })),
      ],
      [
        "o",
        "trajectories of the first selected run",
        withRuns(() => view.runs.length && (window.location.hash = link("trajectories", { run: view.runs[0] }))),
      ],
    ]),
  ];
  const leave = () => {
    ending.abort();
    stops.forEach((stop) => stop());
    grid.clear();
  };
  return { show, leave };
}

function settings(query, shelf) {
  const named = query.get("runs");
  const found = list.split(named === "none" ? "" : named).filter((id) => shelf.runs.some((run) => run.id === id));
  const number = (name) => (query.get(name) === null ? null : Number(query.get(name)));
  return {
    runs: named ? found : shelf.runs.slice(0, AT_FIRST).map((run) => run.id),
    x: query.get("x") === "time" ? "time" : "step",
    window: WINDOWS.includes(Number(query.get("smooth"))) ? Number(query.get("smooth")) : 1,
    more: list.split(query.get("more")),
    from: number("from"),
    to: number("to"),
  };
}

function nothing(shelf) {
  const where = `There is no run in ${shelf.folders.join(", ")} yet; new runs appear here. To start one:`;
  return [empty("No runs yet", where, firstRun(shelf)), broken(shelf)];
}

function broken(shelf) {
  if (!shelf.broken.length) return null;
  return h(
    "details",
    { class: "block" },
    h("summary", {}, `${shelf.broken.length} cannot be read`),
    shelf.broken.map(({ detail }) => h("p", { class: "quiet" }, detail)),
  );
}
