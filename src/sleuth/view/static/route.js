// The address holds the whole state: #/trajectories?run=a&step=3.

/** Page and settings from the address. */
export function here() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "runs", query: new URLSearchParams(query) };
}

/** Address of a page; null and empty settings are omitted. */
export function link(page, settings = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (!blank(value)) query.set(name, String(value));
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return `#/${page}${text ? `?${text}` : ""}`;
}

/** Change settings with a history entry; null removes one. */
export function change(settings) {
  window.location.hash = changed(settings);
}

/** Change settings without a history entry, as for a slider. */
export function adjust(settings) {
  window.history.replaceState(null, "", changed(settings));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Call back now and on every change of the address. */
export function follow(listener) {
  window.addEventListener("hashchange", () => listener(here()));
  listener(here());
}

/** This address with some settings changed. */
export function changed(settings) {
  const { page, query } = here();
  return link(page, { ...Object.fromEntries(query), ...settings });
}

/** Join names into one setting, and split them; commas in names are escaped. */
export const list = {
  join: (names) => names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(","),
  split: (text) => (text ? text.split(",").map((name) => name.replaceAll("%2C", ",").replaceAll("%25", "%")) : []),
};

function blank(value) {
  return value === null || value === undefined || value === "";
}
