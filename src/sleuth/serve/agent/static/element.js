// Elements made of text: whatever a model or a document wrote enters the page as a text node, never as markup.

/** An element with attributes, of which null ones are left out, and children: elements or text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A count with its word: 1 search, 2 searches. */
export function counted(count, one, several) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}
