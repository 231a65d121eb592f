// The fields of a request besides its messages.

import { byId } from "./dom.js";

/** What is set under "Options", as fields of the request. Throws SyntaxError where the further fields are no JSON object. */
export function options() {
  const fields = {};
  for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_tokens"], ["seed", "seed"]]) {
    const { value } = byId(id);
    if (value !== "") fields[name] = Number(value);
  }
  const text = byId("further").value.trim();
  const further = text ? JSON.parse(text) : {};
  if (typeof further !== "object" || further === null || Array.isArray(further)) throw new SyntaxError("they are no object");
  return { ...fields, ...further };
}

/** The system message, if there is one. */
export function system() {
  const content = byId("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}
