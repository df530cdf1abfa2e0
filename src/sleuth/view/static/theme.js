// Light, dark or system theme.

const KEY = "sleuth-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const known = new Map(); // cached colours

/** Current choice: system, light or dark. */
export function chosen() {
  return window.localStorage.getItem(KEY) ?? "system";
}

/** Switch to the next choice. */
export function turn() {
  apply(NEXT[chosen()]);
}

/** Apply and remember the choice. */
export function apply(theme = chosen()) {
  window.localStorage.setItem(KEY, theme);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  changed();
}

function changed() {
  known.clear();
  window.dispatchEvent(new CustomEvent("theme"));
}

system.addEventListener("change", changed);

/** Call back when colours change; returns a function that stops. */
export function onTheme(listener) {
  window.addEventListener("theme", listener);
  return () => window.removeEventListener("theme", listener);
}

/** Current value of a CSS colour, for plotly; `alpha` sets its opacity. */
export function colour(name, alpha = 1) {
  if (!known.has(name)) known.set(name, probed(name));
  return alpha === 1 ? known.get(name) : known.get(name).replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

function probed(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
