// Evaluations: list, figures of one by data set, and selection of two to compare.

import { abandoned, ask } from "../api.js";
import { h, redraw, replace } from "../element.js";
import { bind } from "../keyboard.js";
import { library } from "../library.js";
import { repeat } from "../live.js";
import { short } from "../number.js";
import { evaluationTable } from "../parts/evaluationtable.js";
import { resultTables } from "../parts/results.js";
import { empty, failed, waiting } from "../parts/state.js";
import { STOPS } from "../verdict.js";
import { adjust, change, link, list } from "../route.js";

export function evaluations(place) {
  const ending = new AbortController();
  const areas = { table: h("section", {}), detail: h("section", { class: "detail" }) };
  const known = new Map();
  let shelf = null;
  let query = new URLSearchParams();

  async function show(asked) {
    query = asked;
    if (!shelf) {
      replace(place, waiting());
      shelf = await library(ending.signal);
    }
    if (!shelf.evaluations.length) {
      replace(
        place,
        empty(
          "No evaluations yet",
          `There is no evaluation in ${shelf.folders.join(", ")} yet; evaluate a run or a model:`,
          "sleuth evaluate RUN",
        ),
      );
      return;
    }
    if (!areas.table.isConnected) replace(place, areas.table, areas.detail);
    table();
    await detail(opened());
  }

  function opened() {
    return query.get("evaluation") ?? shelf.evaluations[0]?.id;
  }

  function table() {
    const picked = list.split(query.get("pick"));
    const pick = (id, on) =>
      adjust({ pick: list.join((on ? [...picked, id] : picked.filter((each) => each !== id)).slice(-2)) });
    redraw(areas.table, evaluationTable(shelf.evaluations, opened(), picked, pick));
  }

  async function detail(id) {
    try {
      if (!known.has(id)) known.set(id, await ask("evaluation", { evaluation: id }, ending.signal));
      if (id !== opened()) return;
      const { name, results } = known.get(id);
      const head = h(
        "div",
        { class: "tools above" },
        h("h2", {}, name),
        h("a", { href: link("trajectories", { evaluation: id }) }, "trajectories"),
      );
      if (!results) known.delete(id);
      replace(
        areas.detail,
        head,
        results
          ? [results.title && h("p", { class: "quiet" }, results.title), resultTables(known.get(id)), ended(results)]
          : empty(
              "Not finished",
              "Figures are written at the end; trajectories can be read already.",
              "sleuth evaluate … (repeat the same command to resume)",
            ),
      );
    } catch (error) {
      if (!abandoned(error))
        replace(
          areas.detail,
          failed(error, () => detail(id)),
        );
    }
  }

  function move(by) {
    const rows = shelf?.evaluations ?? [];
    const at = rows.findIndex((each) => each.id === opened());
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
    if (next) change({ evaluation: next.id });
  }

  async function look() {
    shelf = await library(ending.signal).catch(() => shelf);
    if (shelf?.evaluations.length && !areas.table.contains(document.activeElement)) await show(query);
  }

  const stops = [
    repeat(look, 10),
    bind([
      ["j", "next evaluation", () => move(1)],
      ["k", "previous evaluation", () => move(-1)],
      [
        "o",
        "open trajectories",
        () => {
          window.location.hash = link("trajectories", {
            evaluation: opened(),
          });
        },
      ],
    ]),
  ];
  return {
    show,
    leave: () => {
      ending.abort();
      stops.forEach((stop) => stop());
    },
  };
}

function ended({ stops }) {
  const named = Object.entries(stops ?? {}).map(([stop, count]) => `${STOPS[stop] ?? stop} ${short(count)}`);
  return named.length ? h("p", { class: "quiet" }, `Stop reasons: ${named.join(", ")}.`) : null;
}
