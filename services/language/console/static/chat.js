// The conversation: what was said, and the one answer that may be coming.

import { ApiError } from "./api.js";
import { complete } from "./completion.js";
import { byId, say } from "./dom.js";
import { AnswerView, clear, showQuestion } from "./message.js";
import { options, system } from "./options.js";
import { take } from "./pictures.js";

let spoken = [];
let coming = null;

/** Tells what cannot be done; nothing with an empty text. */
export const notice = (text) => say(byId("notice"), text);

/** Sends what the composer holds. `onFailure` is called after a request that failed. */
export async function send(onFailure) {
  const question = byId("question");
  const text = question.value.trim();
  if (coming || (!text && !byId("pictures").children.length)) return;
  let fields;
  try {
    fields = options();
  } catch (error) {
    notice(`The further fields under Options cannot be read: ${error.message}`);
    return;
  }
  notice("");
  const pictures = take();
  question.value = "";
  showQuestion(text, pictures);
  await ask(asked(text, pictures), fields, onFailure);
}

function asked(text, pictures) {
  if (!pictures.length) return { role: "user", content: text };
  const parts = pictures.map((picture) => ({ type: "image_url", image_url: { url: picture.url } }));
  return { role: "user", content: text ? [...parts, { type: "text", text }] : parts };
}

async function ask(message, fields, onFailure) {
  const conversation = spoken;
  const view = new AnswerView();
  const controller = new AbortController();
  const began = performance.now();
  let first = null;
  let last = { content: "", reasoning: "", calls: [], reason: null, usage: null, timings: null };
  const seconds = () => (performance.now() - began) / 1000;
  busy(controller);
  try {
    last = await complete({ messages: [...system(), ...conversation, message], ...fields }, controller.signal, (answer) => {
      last = answer;
      if (first === null && (answer.content || answer.reasoning || answer.calls.length)) first = seconds();
      view.update(answer);
    });
    view.finish(last, seconds(), first);
    remember(conversation, message, last);
  } catch (error) {
    if (error.name === "AbortError") {
      view.finish(last, seconds(), first);
      if (last.content) remember(conversation, message, last);
    } else if (error instanceof ApiError) {
      view.fail(error, () => {
        if (!coming) ask(message, fields, onFailure);
      });
      onFailure();
    } else {
      throw error;
    }
  } finally {
    busy(null);
  }
}

/** A question counts as asked when it was answered; what failed is not said again. */
function remember(conversation, message, answer) {
  const reply = { role: "assistant", content: answer.content };
  if (answer.calls.length) {
    reply.tool_calls = answer.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  }
  conversation.push(message, reply);
}

function busy(controller) {
  const focused = document.activeElement;
  const [send, stopping] = [byId("send"), byId("stop")];
  coming = controller;
  send.hidden = controller !== null;
  stopping.hidden = controller === null;
  // A button that vanishes must not take the focus along.
  if (focused === send || focused === stopping) byId("question").focus();
}

/** Ends the answer that is coming; the service is told by the broken connection. */
export function stop() {
  coming?.abort();
}

/** Forgets the conversation. */
export function fresh() {
  stop();
  // An answer that was coming belongs to the conversation that is left.
  spoken = [];
  clear();
  notice("");
  byId("question").focus();
}
