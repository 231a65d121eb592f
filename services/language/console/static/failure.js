// A failed request, explained.

import { meaning } from "./codes.js";
import { make } from "./dom.js";

/** The box that tells what became of a request, with a button to try again. */
export function explained(error, again) {
  const facts = [
    error.param && ["Parameter", error.param],
    error.requestId && ["Request id", error.requestId],
    error.retryAfter && ["Retry after", `${error.retryAfter} s`],
  ].filter(Boolean);
  const button = make("button", { type: "button" }, "Try again");
  button.addEventListener("click", again);
  const title = error.status ? `${error.status} ${error.code}` : error.code;
  return make(
    "div",
    { class: "failed", role: "alert", "data-code": error.code },
    make("p", { class: "title" }, title),
    make("p", {}, meaning(error.code)),
    make("p", { class: "told" }, `The service says: ${error.message}`),
    facts.length ? make("p", { class: "facts soft" }, facts.map(([name, value]) => `${name}: ${value}`).join(" · ")) : null,
    button,
  );
}
