// The field for the API key, which is there when the service asks for one.

import { access, useKey } from "./api.js";
import { byId } from "./dom.js";

/** Shows the field when it is needed, and takes what is entered. */
export function install() {
  const form = byId("key");
  const input = byId("key-value");
  access.addEventListener("unauthorized", () => {
    if (!form.hidden) return;
    form.hidden = false;
    input.focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.hidden = true;
    useKey(input.value.trim());
    input.value = "";
    byId("question").focus();
  });
}
