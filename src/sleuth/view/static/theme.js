// Light or dark: as the system has it, until the switch says otherwise.

const KEY = "sleuth-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const known = new Map(); // colours asked for since they last changed

/** The choice made: system, light or dark. */
export function chosen() {
  return window.localStorage.getItem(KEY) ?? "system";
}

/** Takes the next choice in turn. */
export function turn() {
  apply(NEXT[chosen()]);
}

/** Shows the page in the chosen colours, now and from now on. */
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

/** Calls back whenever colours change, by the switch or by the system; returns how to stop that. */
export function onTheme(listener) {
  window.addEventListener("theme", listener);
  return () => window.removeEventListener("theme", listener);
}

/** What a colour of the style sheet is at this moment, for drawings that know no variables; `alpha` thins it. */
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
