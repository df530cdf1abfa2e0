// Elements made of text: whatever a model or a document wrote enters the page as a text node, never as markup.

// Controls, terminal escapes and directional overrides: they would hide or reorder the text around them.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Text as a reader may see it, as `visible` of page/text.py makes it. */
export function visible(text) {
  return String(text).replace(HIDDEN, "\ufffd");
}

/** An element with attributes, of which null ones are left out, and children: elements or text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** A count with its word: 1 search, 2 searches. */
export function counted(count, one, several) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}
