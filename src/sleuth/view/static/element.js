// DOM elements; text of models and documents becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; "on…" attributes are listeners, null and false ones are omitted. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the children of an element. */
export function replace(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/** Like `replace`, but keep the keyboard focus on the same control. */
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

// Control characters, terminal escapes and directional overrides, which hide or reorder text.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Replace hidden characters, like `visible` in page/document.py. */
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
