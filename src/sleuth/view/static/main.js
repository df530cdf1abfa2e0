// Application shell: top bar, routing and global keys.

import { h, replace } from "./element.js";
import { bind, listen } from "./keyboard.js";
import { comparison } from "./pages/comparison.js";
import { evaluations } from "./pages/evaluations.js";
import { runs } from "./pages/runs.js";
import { trajectories } from "./pages/trajectories.js";
import { icon } from "./parts/icons.js";
import { empty, failed } from "./parts/state.js";
import { follow, link } from "./route.js";
import { apply, chosen, onTheme, turn } from "./theme.js";

// A page is a function of its container that returns { show(query), leave() }.
const PAGES = { runs, trajectories, evaluations, compare: comparison };
const TABS = [
  ["runs", "Runs", "1"],
  ["trajectories", "Trajectories", "2"],
  ["evaluations", "Evaluations", "3"],
];
const PARENT = { compare: "evaluations" };
const THEMES = { system: ["half", "system"], light: ["sun", "light"], dark: ["moon", "dark"] };

const place = h("main", { tabindex: -1 });
let current = { page: null, controller: null };

function begin() {
  apply();
  listen();
  bind(
    TABS.map(([page, title, key]) => [
      key,
      title,
      () => {
        window.location.hash = link(page);
      },
    ]),
  );
  document.body.append(bar(), place);
  follow(open);
}

async function open({ page, query }) {
  document.querySelectorAll(".tabs a").forEach((tab) => mark(tab, page));
  document.title = `${page[0].toUpperCase()}${page.slice(1)} · Sleuth`;
  if (page !== current.page) {
    current.controller?.leave();
    replace(place);
    place.className = `page-${page}`;
    current = { page, controller: PAGES[page]?.(place) ?? null };
    window.scrollTo(0, 0);
  }
  if (!current.controller) {
    replace(place, empty("Page not found", "Use the tabs above."));
    return;
  }
  const { controller } = current;
  try {
    await controller.show(query);
  } catch (error) {
    if (controller === current.controller)
      replace(
        place,
        failed(error, () => window.location.reload()),
      );
  }
}

function mark(tab, page) {
  if (tab.dataset.page === (PARENT[page] ?? page)) tab.setAttribute("aria-current", "page");
  else tab.removeAttribute("aria-current");
}

function bar() {
  const tabs = TABS.map(([page, title]) => h("a", { href: link(page), "data-page": page }, title));
  const keys = () => document.dispatchEvent(new KeyboardEvent("keydown", { key: "?" }));
  return h(
    "header",
    { class: "bar" },
    h("a", { class: "brand", href: link("runs"), "aria-label": "Sleuth" }, icon("glass"), h("span", {}, "Sleuth")),
    h("nav", { class: "tabs", "aria-label": "Pages" }, tabs),
    h(
      "div",
      { class: "end" },
      h(
        "button",
        { class: "icon keyboard", title: "Keyboard (?)", "aria-label": "Keyboard", onclick: keys },
        icon("keyboard"),
      ),
      switcher(),
    ),
  );
}

function switcher() {
  const button = h("button", { class: "icon theme", onclick: turn });
  const draw = () => {
    const [drawing, words] = THEMES[chosen()];
    button.title = `Colours: ${words}`;
    button.setAttribute("aria-label", button.title);
    replace(button, icon(drawing));
  };
  onTheme(draw);
  draw();
  return button;
}

begin();
