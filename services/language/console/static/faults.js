// Faults of encoders on order, where the service and the encoder allow them.

import { json } from "./api.js";
import { byId, make, say } from "./dom.js";
import { fields } from "./schema.js";

let kinds = [];
let parameters = [];
let known = null;
let chosen = null;

const path = (below = "") => `/v1/encoders/${encodeURIComponent(chosen)}/faults${below}`;
const tell = (text) => say(byId("faults-note"), text);

/** Shows the section, whose buttons work from now on. */
export function install() {
  byId("faults").hidden = false;
  byId("faults-link").hidden = false;
  byId("fault-encoder").addEventListener("change", () => choose(byId("fault-encoder").value));
  byId("fault-kind").addEventListener("change", describe);
  byId("fault").addEventListener("submit", (event) => {
    event.preventDefault();
    change(path(), { method: "POST", body: wanted() }, "The fault is set.");
  });
  byId("fault-clear").addEventListener("click", () => change(path(), { method: "DELETE" }, "All faults are cleared."));
}

/** Offers the encoders that can be called now; one that is lost often can, and hangs because of a fault. */
export async function offer(encoders) {
  const there = encoders.filter((encoder) => encoder.encoder_id && encoder.shown !== "down");
  const key = there.map((encoder) => encoder.encoder_id).join();
  if (key === known) return;
  known = key;
  const select = byId("fault-encoder");
  select.replaceChildren(...there.map((encoder) => make("option", { value: encoder.encoder_id }, encoder.encoder_id)));
  if (there.some((encoder) => encoder.encoder_id === chosen)) select.value = chosen;
  await choose(select.value || null);
}

async function choose(encoder) {
  chosen = encoder;
  kinds = [];
  if (chosen !== null) await tried(async () => { kinds = (await json(path("/kinds"))).kinds; tell(""); });
  else tell("No encoder can be reached.");
  const select = byId("fault-kind");
  const before = select.value;
  select.replaceChildren(...kinds.map(({ kind }) => make("option", { value: kind }, kind)));
  if (kinds.some(({ kind }) => kind === before)) select.value = before;
  byId("fault-set").disabled = byId("fault-clear").disabled = !kinds.length;
  describe();
  await refresh();
}

function describe() {
  const kind = kinds.find((each) => each.kind === byId("fault-kind").value);
  say(byId("fault-about"), kind ? kind.description.replaceAll("`", "").replaceAll(/\s+/g, " ") : "");
  parameters = kind ? fields(kind.parameters) : [];
  byId("fault-fields").replaceChildren(...parameters.map(({ label }) => label));
}

function wanted() {
  const given = parameters.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined);
  return { kind: byId("fault-kind").value, ...Object.fromEntries(given) };
}

/** Shows the faults that are set, and how often each has fired. */
export async function refresh() {
  const list = byId("fault-list");
  if (!kinds.length) {
    list.replaceChildren();
    return;
  }
  await tried(async () => {
    const { faults } = await json(path());
    const ids = faults.map(({ id }) => id);
    for (const item of [...list.children]) if (!ids.includes(item.dataset.id)) item.remove();
    for (const fault of faults) say(entry(list, fault.id).firstChild, text(fault));
  });
}

/** The line of a fault, which stays the same element, so that its button keeps the focus. */
function entry(list, id) {
  const there = [...list.children].find((item) => item.dataset.id === id);
  if (there) return there;
  const button = make("button", { type: "button", class: "small", "aria-label": `Clear ${id}` }, "Clear");
  button.addEventListener("click", () => change(path(`/${encodeURIComponent(id)}`), { method: "DELETE" }, "The fault is cleared."));
  const item = make("li", { "data-id": id }, make("span"), button);
  list.append(item);
  return item;
}

function text({ fault, fired }) {
  const { kind, match, ...rest } = fault;
  const set = Object.entries(rest).filter(([name, value]) => value !== null && !(name === "probability" && value === 1));
  return [kind, ...set.map(([name, value]) => `${name} ${value}`), `fired ${fired}`].join(" · ");
}

async function change(where, options, done) {
  await tried(async () => {
    await json(where, options);
    tell(done);
  });
  await refresh();
}

async function tried(action) {
  try {
    await action();
  } catch (error) {
    tell(error.message);
  }
}
