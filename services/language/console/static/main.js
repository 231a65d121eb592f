// Puts the page together.

import { json } from "./api.js";
import { fresh, notice, send, stop } from "./chat.js";
import { byId, say } from "./dom.js";
import * as encoders from "./encoders.js";
import * as failures from "./failures.js";
import * as faults from "./faults.js";
import * as key from "./key.js";
import * as pictures from "./pictures.js";
import { poll } from "./poll.js";

const settings = await json("/console/settings");
key.install();
pictures.install(byId("chat"), notice);
if (settings.faults_enabled) faults.install();

const lookAtFailures = poll(2000, async () => {
  await failures.refresh();
  if (settings.faults_enabled) await faults.refresh();
});
poll(1000, async () => {
  const there = await encoders.refresh(settings.liveness_timeout);
  if (!byId("model").textContent) {
    const [model] = (await json("/v1/models")).data;
    say(byId("model"), `${model.id} · ${model.max_model_len} tokens of context`);
  }
  if (settings.faults_enabled) await faults.offer(there);
});

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(lookAtFailures);
});
byId("question").addEventListener("keydown", (event) => {
  // Enter that ends the input of a word, in Japanese for example, sends nothing.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send(lookAtFailures);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
byId("stop").addEventListener("click", stop);
byId("fresh").addEventListener("click", fresh);
byId("question").focus();
