// Fields for the parameters of a fault, from their JSON schema.

import { make } from "./dom.js";

const LEFT_OUT = ["kind", "match"];

/** One field a parameter: its `label` element, and `value()`, undefined where the default is meant. */
export function fields(schema) {
  return Object.entries(schema.properties)
    .filter(([name]) => !LEFT_OUT.includes(name))
    .sort(([a], [b]) => isCommon(a) - isCommon(b))
    .map(([name, property]) => field(name, resolved(property, schema), (schema.required ?? []).includes(name)));
}

// What all kinds have comes last.
const isCommon = (name) => Number(["probability", "count", "seed"].includes(name));

function field(name, property, required) {
  const fallback = property.default === null || property.default === undefined ? "" : `${property.default}`;
  const input = property.enum ? make("select", { name }, ...property.enum.map(
    (value) => make("option", { value, selected: value === property.default }, value))) : make("input", {
    name, required, placeholder: fallback, type: isNumber(property) ? "number" : "text",
    min: property.minimum ?? null, max: property.maximum ?? null, step: property.type === "integer" ? "1" : "any",
  });
  const read = () => (input.value === "" ? undefined : isNumber(property) ? Number(input.value) : input.value);
  return { name, label: make("label", {}, `${name} `, input), value: read };
}

const isNumber = (property) => property.type === "number" || property.type === "integer";

/** A property without its references, and without null as a further type. */
function resolved(property, schema) {
  if (property.$ref) return { ...schema.$defs[property.$ref.split("/").pop()], ...property };
  const real = property.anyOf?.find((choice) => choice.type !== "null");
  return real ? { ...resolved(real, schema), default: property.default } : property;
}
