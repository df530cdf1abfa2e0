// Token overlays: colour, strength and legend.

import { short } from "./number.js";

const UNLIKELY = 5; // nats at full strength
const APART = Math.log(1.05); // minimum log ratio at full strength

/** Overlays in display order. */
export const OVERLAYS = {
  origin: { title: "origin", make: origin },
  logprob: { title: "logprob", make: logprob },
  ratio: { title: "ratio", make: ratio },
  advantage: { title: "advantage", make: advantage },
  version: { title: "version", make: version },
};

/** Overlays available for a trajectory. */
export function available(tokens, name) {
  return name === "origin" || (tokens[name] ?? []).some((value) => value !== null);
}

/** Colouring: { of(place) -> [colour, strength] or null, legend: [[colour, strength, label], ...] }. */
export function shade(tokens, name) {
  return OVERLAYS[name].make(tokens);
}

function origin({ origin: origins, advantage }) {
  const legend = [
    ["c0", 0.3, "sampled by the model, trained on"],
    [null, 0, "given: prompt and documents"],
  ];
  const looks = { sampled: ["c0", 0.3], frozen: ["c2", 0.3], shared: ["quiet", 0.15] };
  // Tokens of a role that is not trained have no advantage, though others have one.
  const kind = (place) => (origins[place] === "sampled" && advantage?.[place] === null ? "frozen" : origins[place]);
  const kinds = new Set(origins.map((each, place) => kind(place)));
  if (kinds.has("frozen")) legend.push([...looks.frozen, "sampled in a role that is not trained"]);
  if (kinds.has("shared")) legend.push([...looks.shared, "shared with the parent segment, which trains on it"]);
  return { of: (place) => looks[kind(place)] ?? null, legend };
}

function logprob({ logprob: values }) {
  const legend = [
    ["c1", 0.05, "sure, 0"],
    ["c1", 0.45, `−${UNLIKELY / 2}`],
    ["c1", 0.85, `unlikely, −${UNLIKELY} and less`],
  ];
  return {
    of: (place) => (values[place] === null ? null : ["c1", 0.05 + 0.8 * Math.min(1, -values[place] / UNLIKELY)]),
    legend,
  };
}

function ratio({ ratio: values }) {
  return diverging(
    values.map((value) => (value === null ? null : Math.log(value))),
    (size, sign) => short(Math.exp(sign * size)),
    APART,
  );
}

function advantage({ advantage: values }) {
  return diverging(values, (size, sign) => short(sign * size));
}

/** Diverging colours around zero, scaled to the largest value. */
function diverging(values, said, least = Number.MIN_VALUE) {
  const largest = Math.max(least, ...values.map((value) => Math.abs(value ?? 0)));
  const of = (place) => {
    const value = values[place];
    return value === null ? null : [value < 0 ? "below" : "above", (0.6 * Math.abs(value)) / largest];
  };
  if (largest === Number.MIN_VALUE) return { of, legend: [[null, 0, `${said(0, 1)} everywhere`]] };
  return {
    of,
    legend: [
      ["below", 0.6, said(largest, -1)],
      [null, 0, said(0, 1)],
      ["above", 0.6, said(largest, 1)],
    ],
  };
}

function version({ version: values }) {
  const known = [...new Set(values.filter((value) => value !== null))].sort((first, second) => first - second);
  const look = (value) => [`c${known.indexOf(value) % 6}`, 0.35];
  return {
    of: (place) => (values[place] === null ? null : look(values[place])),
    legend: known.map((value) => [...look(value), `weights ${value}`]),
  };
}
