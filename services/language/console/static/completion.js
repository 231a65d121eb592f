// One streamed chat completion.

import { ApiError, call } from "./api.js";
import { events } from "./sse.js";

/**
 * Asks, and calls `onChange` with the answer whenever there is more of it: `content`, `reasoning`, `calls`, at last also `reason`,
 * `usage` and `timings`. Returns the answer. Throws ApiError, with what there is of the answer lost to nobody: `onChange` saw it.
 */
export async function complete(body, signal, onChange) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true }, return_timings: true };
  const response = await call("/v1/chat/completions", { method: "POST", body: asked, signal });
  const answer = { content: "", reasoning: "", calls: [], reason: null, usage: null, timings: null };
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return answer;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error, response.status, response.headers);
    add(answer, chunk);
    onChange(answer);
  }
  throw new ApiError({ code: "stream_ended", message: "The stream ended early." }, response.status, response.headers);
}

function add(answer, chunk) {
  answer.usage = chunk.usage ?? answer.usage;
  answer.timings = chunk.timings ?? answer.timings;
  const choice = chunk.choices[0];
  if (!choice) return;
  answer.content += choice.delta.content ?? "";
  answer.reasoning += choice.delta.reasoning_content ?? "";
  answer.reason = choice.finish_reason ?? answer.reason;
  for (const delta of choice.delta.tool_calls ?? []) {
    const known = (answer.calls[delta.index] ??= { id: "", name: "", arguments: "" });
    known.id = delta.id ?? known.id;
    known.name += delta.function?.name ?? "";
    known.arguments += delta.function?.arguments ?? "";
  }
}
