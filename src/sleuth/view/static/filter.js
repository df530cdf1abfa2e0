// Trajectory filters: from the address to request parameters.

const NAMES = {
  from: "step_from",
  to: "step_to",
  question: "question",
  source: "source",
  min: "reward_min",
  max: "reward_max",
  stop: "stop",
  group: "group",
  segments: "segments_min",
  sample: "sample",
  text: "text",
  order: "order",
  cursor: "cursor",
};

/** Filter names in the address, without the paging parameters. */
export const FILTERS = Object.keys(NAMES).filter((name) => !["order", "cursor"].includes(name));

/** Request parameters of the list. */
export function wanted(query, source) {
  const known = Object.entries(NAMES).map(([name, parameter]) => [parameter, query.get(name)]);
  return { ...source, ...Object.fromEntries(known) };
}

/** Number of active filters. */
export function count(query) {
  return FILTERS.filter((name) => query.get(name)).length;
}

/** Settings that clear all filters. */
export function none() {
  return Object.fromEntries([...FILTERS, "cursor", "page"].map((name) => [name, null]));
}
