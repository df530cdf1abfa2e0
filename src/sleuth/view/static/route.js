// The address holds the whole state of the page: #/trajectories?run=a&step=3. Links, reload and "back" restore it.

/** The page named by the address, and its settings. */
export function here() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "runs", query: new URLSearchParams(query) };
}

/** The address of a page; settings that are null or empty are left out. */
export function link(page, settings = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (!blank(value)) query.set(name, String(value));
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return `#/${page}${text ? `?${text}` : ""}`;
}

/** Changes some settings of this page, leaving a way back; null removes one. */
export function change(settings) {
  window.location.hash = changed(settings);
}

/** Changes some settings in place: what a slider does is not worth a way back. */
export function adjust(settings) {
  window.history.replaceState(null, "", changed(settings));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Calls back now and whenever the address changes. */
export function follow(listener) {
  window.addEventListener("hashchange", () => listener(here()));
  listener(here());
}

/** The address of this page with some settings changed. */
export function changed(settings) {
  const { page, query } = here();
  return link(page, { ...Object.fromEntries(query), ...settings });
}

/** Several names in one setting, and back; a comma inside a name is written differently. */
export const list = {
  join: (names) => names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(","),
  split: (text) => (text ? text.split(",").map((name) => name.replaceAll("%2C", ",").replaceAll("%25", "%")) : []),
};

function blank(value) {
  return value === null || value === undefined || value === "";
}
