// The encoders and their states, live.

import { json } from "./api.js";
import { byId, make, say } from "./dom.js";

const SYMBOLS = { ready: "●", draining: "◐", down: "✕", lost: "○", silent: "◌", refused: "⊘", unknown: "?" };
// The reasons of an encoder that is down although nothing broke the connection to it.
const SILENT = /sign of life|answer in time/;
const FACTS = ["in flight", "in work", "last sign", "transport", "circuit", "device"];
const cards = new Map();

/**
 * An encoder's state in one word: as the service tells it, "silent" where signs of life are late, and "lost" where they fail to
 * come. `patience` is how many seconds the service waits for one.
 */
function stateOf(encoder, patience) {
  if (encoder.state === "down" && encoder.silence !== null && SILENT.test(encoder.reason)) return "lost";
  if (encoder.state === "ready" && encoder.silence > patience / 2) return "silent";
  return encoder.state in SYMBOLS ? encoder.state : "unknown";
}

/** Looks at the encoders, shows them, and returns them, each with its state in one word as `shown`. */
export async function refresh(patience) {
  let encoders;
  try {
    encoders = (await json("/v1/encoders")).data.map((encoder) => ({ ...encoder, shown: stateOf(encoder, patience) }));
  } catch (error) {
    summary(error.status === 401 ? "An API key is needed" : "The service does not answer", true);
    throw error;
  }
  const ready = encoders.filter((encoder) => encoder.state === "ready").length;
  summary(`${ready} of ${encoders.length} encoder${encoders.length === 1 ? "" : "s"} ready`, ready === 0);
  say(byId("encoders-note"), encoders.length ? "" : "No encoder is configured or registered: only text is answered.");
  show(encoders);
  return encoders;
}

function summary(text, bad) {
  say(byId("summary"), text);
  byId("summary").classList.toggle("bad", bad);
}

function show(encoders) {
  const urls = new Set(encoders.map((encoder) => encoder.url));
  for (const [url, card] of cards) {
    if (!urls.has(url)) {
      card.element.remove();
      cards.delete(url);
    }
  }
  for (const encoder of encoders) {
    if (!cards.has(encoder.url)) cards.set(encoder.url, card(encoder.url));
    update(cards.get(encoder.url), encoder);
  }
}

function card(url) {
  const state = make("span", { class: "state" });
  const name = make("span", { class: "id" });
  const reason = make("p");
  const values = FACTS.map(() => make("dd"));
  const failures = make("ul", { class: "chips", "aria-label": "Failures by code" });
  const facts = make("dl", {}, ...FACTS.flatMap((fact, at) => [make("dt", {}, fact), values[at]]));
  const element = make("li", { "data-url": url }, make("div", { class: "head" }, state, name), make("p", { class: "soft id" }, url), reason, facts, failures);
  byId("encoder-list").append(element);
  return { element, state, name, reason, values, failures };
}

function update(card, encoder) {
  card.element.className = `is-${encoder.shown}`;
  say(card.state, `${SYMBOLS[encoder.shown]} ${encoder.shown}`);
  say(card.name, encoder.encoder_id ?? "not known yet");
  say(card.reason, encoder.reason);
  const facts = [
    `${encoder.in_flight}`,
    `${encoder.items_in_work} of ${encoder.max_items}`,
    encoder.silence === null ? "never" : `${encoder.silence.toFixed(1)} s ago`,
    encoder.transport,
    encoder.circuit,
    encoder.device ?? "",
  ];
  facts.forEach((fact, at) => say(card.values[at], fact));
  const codes = Object.entries(encoder.failures);
  card.failures.replaceChildren(...codes.map(([code, times]) => make("li", {}, `${code} `, make("b", {}, `${times}`))));
}
