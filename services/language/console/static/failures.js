// The failures that clients have met, by code and one by one.

import { json } from "./api.js";
import { meaning } from "./codes.js";
import { byId, make, say } from "./dom.js";
import { clock } from "./format.js";

let shown = "";

/** Looks at the failures and shows them; what is shown stays as it is where nothing is new. */
export async function refresh() {
  const { counts, data, since } = await json("/v1/failures");
  const key = JSON.stringify([counts, data[0] ?? null]);
  say(byId("failures-note"), data.length || Object.keys(counts).length ? `Since ${clock(since)}.` : `None since ${clock(since)}.`);
  if (key === shown) return;
  shown = key;
  const codes = Object.entries(counts).sort(([, a], [, b]) => b - a);
  byId("failure-counts").replaceChildren(...codes.map(
    ([code, times]) => make("li", { title: meaning(code), "data-code": code }, `${code} `, make("b", {}, `${times}`))));
  byId("failure-list").replaceChildren(...data.map(entry));
}

function entry(failure) {
  const place = [failure.param && `parameter ${failure.param}`, failure.encoder && `encoder ${failure.encoder}`, `request ${failure.request_id}`];
  const head = make("p", { class: "head" }, make("span", {}, clock(failure.time)), make("b", {}, `${failure.status} ${failure.code}`),
    failure.streamed ? make("span", {}, "in the stream") : null);
  const more = make("details", {}, make("summary", {}, "Details"), make("p", {}, meaning(failure.code)),
    make("p", {}, `${failure.method} ${failure.path} · ${place.filter(Boolean).join(" · ")}`));
  return make("li", { "data-code": failure.code }, head, failure.message ? make("p", {}, failure.message) : null, more);
}
