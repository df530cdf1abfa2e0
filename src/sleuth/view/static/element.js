// Elements made of text: whatever a model or a document wrote enters the page as a text node, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; attributes beginning with "on" are listeners, null and false ones are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Puts these children, and no others, into an element. */
export function replace(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/** As `replace`, for controls: whoever was at one of them is at the same one afterwards. */
export function redraw(parent, ...children) {
  const at = parent.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  replace(parent, ...children);
  if (at)
    [...parent.querySelectorAll("a, button, input, select, summary")]
      .find((each) => nameOf(each) === at)
      ?.focus({ preventScroll: true });
  return parent;
}

function nameOf(control) {
  return [
    control.tagName,
    control.getAttribute("name"),
    control.getAttribute("aria-label") ?? control.textContent,
    control.getAttribute("value"),
  ].join(" ");
}

// Controls, terminal escapes and directional overrides: they would hide or reorder the text around them.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Text as a reader may see it, as `visible` of page/text.py makes it. */
export function visible(text) {
  return String(text).replace(HIDDEN, "\ufffd");
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}
