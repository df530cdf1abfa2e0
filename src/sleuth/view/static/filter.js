// Which trajectories are wanted: the settings of the address, and what the server is asked for them.

const NAMES = {
  from: "step_from",
  to: "step_to",
  question: "question",
  source: "source",
  min: "reward_min",
  max: "reward_max",
  stop: "stop",
  group: "group",
  sample: "sample",
  text: "text",
  order: "order",
  cursor: "cursor",
};

/** The names of the filters in the address, without the two that say which page of the list is shown. */
export const FILTERS = Object.keys(NAMES).filter((name) => !["order", "cursor"].includes(name));

/** The parameters of the server's list. */
export function wanted(query, source) {
  const known = Object.entries(NAMES).map(([name, parameter]) => [parameter, query.get(name)]);
  return { ...source, ...Object.fromEntries(known) };
}

/** How many filters are set. */
export function count(query) {
  return FILTERS.filter((name) => query.get(name)).length;
}

/** The settings that take every filter away. */
export function none() {
  return Object.fromEntries([...FILTERS, "cursor", "page"].map((name) => [name, null]));
}
