// A plotly chart in the page's theme; the charts of a page share their zoom.

import { h } from "../element.js";
import { colour } from "../theme.js";

const SCRIPT = "/plotly.min.js";
const SETTINGS = { displayModeBar: false, responsive: true, showTips: false, doubleClick: false };
const DASHES = ["solid", "dot", "dash"];
let loading = null;

/** Load plotly from this server when the first chart is drawn. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const fail = () => {
      loading = null;
      reject(new Error("The chart library could not be loaded; is the server still running?"));
    };
    document.head.append(h("script", { src: SCRIPT, onload: () => resolve(window.Plotly), onerror: fail }));
  });
  return loading;
}

/** A chart drawn when visible; `zoomed(from, to)` is called with the new x range, or nulls. */
export function chart(title, note, zoomed) {
  const plot = h("div", { class: "plot" });
  const figure = h(
    "figure",
    { class: "chart", "aria-label": title },
    h("figcaption", {}, title, " ", h("span", { class: "quiet" }, note)),
    plot,
  );
  let [seen, ready, latest] = [false, false, null];
  const put = async () => {
    const library = await plotly();
    if (!figure.isConnected || !latest) return;
    const [traces, layout] = latest;
    latest = null;
    await library.react(plot, traces, { ...frame(), ...layout }, SETTINGS);
    if (!ready) listen(plot, zoomed);
    ready = true;
    plot.dataset.drawn = "true";
  };
  const watch = new IntersectionObserver(
    ([{ isIntersecting }]) => {
      seen = isIntersecting;
      if (seen) put();
    },
    { rootMargin: "200px" },
  );
  watch.observe(plot);
  const draw = async (traces, layout) => {
    latest = [traces, layout];
    if (seen) await put();
  };
  const remove = () => {
    watch.disconnect();
    if (ready) window.Plotly.purge(plot);
  };
  return { figure, draw, remove };
}

/** Escape a name: plotly interprets markup in names. */
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Line style of a run: its colour, dashed once the colours repeat. */
export function look(place) {
  return { color: colour(`c${place % 6}`), dash: DASHES[Math.floor(place / 6) % DASHES.length] };
}

/** An axis in the style of the page. */
export function axis(changes = {}) {
  return {
    gridcolor: colour("line", 0.5),
    zeroline: false,
    linecolor: colour("line"),
    tickcolor: colour("line"),
    ticklen: 3,
    automargin: true,
    nticks: 5,
    ...changes,
  };
}

function frame() {
  const font = { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("quiet") };
  return {
    font,
    margin: { l: 40, r: 8, t: 8, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "x unified",
    dragmode: "zoom",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { ...font, color: colour("ink") } },
  };
}

function listen(plot, zoomed) {
  plot.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) zoomed(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  });
  plot.on("plotly_doubleclick", () => zoomed(null, null));
}
