// Making elements. Text only ever becomes text.

/** The element with an id that the page has. */
export const byId = (id) => document.getElementById(id);

/** A new element: attributes by name (false and null leave one out), then children, of which strings are text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets an element's text, unless it is that already, so that screen readers are told of changes only. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
