// One message of the conversation, as it is shown.

import { chart } from "./chart.js";
import { byId, make, say } from "./dom.js";
import { explained } from "./failure.js";
import { count, duration } from "./format.js";
import { spared } from "./timeline.js";

/** Shows a question. */
export function showQuestion(text, pictures) {
  append(make(
    "article",
    { class: "message user" },
    make("h3", {}, "You"),
    pictures.length ? make("ul", { class: "shown" }, ...pictures.map(
      (picture) => make("li", {}, make("img", { src: picture.url, alt: picture.name })))) : null,
    make("p", { class: "text" }, text),
  ));
}

/** An answer that is shown while it comes. */
export class AnswerView {
  constructor() {
    this.text = make("p", { class: "text" });
    this.above = make("div");
    this.calls = make("div");
    this.footer = make("footer");
    this.element = make("article", { class: "message model", "aria-busy": "true" }, make("h3", {}, "Model"), this.above, this.text, this.calls, this.footer);
    for (const earlier of document.querySelectorAll("details.times")) earlier.open = false;
    append(this.element);
  }

  /** Shows the answer as it is by now. */
  update(answer) {
    const box = byId("messages");
    const following = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    if (answer.reasoning) this.#reasoning(answer.reasoning);
    say(this.text, answer.content);
    this.calls.replaceChildren(...answer.calls.map((call) => make(
      "div", { class: "call" }, make("b", {}, call.name), make("pre", {}, make("code", {}, call.arguments)))));
    if (following) box.scrollTop = box.scrollHeight;
  }

  #reasoning(text) {
    if (!this.thoughts) {
      this.thoughts = make("p", { class: "text soft" });
      this.above.append(make("details", { class: "reasoning" }, make("summary", {}, "Reasoning"), this.thoughts));
    }
    say(this.thoughts, text);
  }

  /** Shows how it ended: `answer` has the finish reason, usage and timings, `seconds` what passed here. */
  finish(answer, seconds, firstSeconds) {
    this.element.setAttribute("aria-busy", "false");
    const { usage, timings } = answer;
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const items = timings?.items ?? [];
    const facts = [
      `finish: ${answer.reason ?? "stopped"}`,
      usage && `prompt: ${count(usage.prompt_tokens, "token")}${cached ? `, ${cached} cached` : ""}`,
      usage && `answer: ${count(usage.completion_tokens, "token")}`,
      `first token: ${firstSeconds === null ? "none" : duration(firstSeconds)}`,
      `in all: ${duration(seconds)}`,
      items.length ? `cache hits: ${items.filter(spared).length} of ${count(items.length, "item")}` : null,
    ];
    this.footer.replaceChildren(...facts.filter(Boolean).map((fact) => make("span", {}, fact)));
    if (timings) this.element.append(make("details", { class: "times", open: true }, make("summary", {}, "Time line"), chart(timings)));
    scrollDown();
  }

  /** Shows that it failed. */
  fail(error, again) {
    this.element.setAttribute("aria-busy", "false");
    this.element.append(explained(error, again));
    scrollDown();
  }
}

function append(element) {
  byId("empty").hidden = true;
  byId("messages").append(element);
  scrollDown();
}

function scrollDown() {
  const box = byId("messages");
  box.scrollTop = box.scrollHeight;
}

/** Removes all messages. */
export function clear() {
  const empty = byId("empty");
  empty.hidden = false;
  byId("messages").replaceChildren(empty);
}
