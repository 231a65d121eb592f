// Where a request's time went: the stages of `timings` as rows with a begin and an end.

const ENGINE = ["queue", "prefill", "decode"];
const WORDS = { image: "Picture", video: "Video", audio: "Sound" };

/** Where an item's embeddings came from, in words. */
export function source(item) {
  const encoder = item.encoder_id ?? "the encoder";
  const words = {
    language: "from the language service's cache",
    shared: "shared with another request",
    encoder: `from the cache of ${encoder}`,
    computed: `computed by ${encoder}`,
  };
  return words[item.source] ?? item.source;
}

/** Whether no tower had to run for an item. */
export const spared = (item) => item.source !== "computed";

/**
 * The rows, in seconds since the request's arrival, and the `total`. The stages follow each other; within the stage
 * "embeddings", all items begin together, and of each the encoder's stages follow each other.
 */
export function layout(timings) {
  const rows = [];
  let now = 0;
  for (const [stage, seconds] of Object.entries(timings.stages)) {
    rows.push({ stage, group: ENGINE.includes(stage) ? "engine" : "language", start: now, seconds });
    if (stage === "embeddings") rows.push(...timings.items.flatMap((item) => rowsOf(item, now)));
    now += seconds;
  }
  return { rows, total: Math.max(now, ...rows.map((row) => (row.start ?? 0) + (row.seconds ?? 0))) };
}

function rowsOf(item, start) {
  const title = `${WORDS[item.modality] ?? item.modality} ${item.index + 1}: ${source(item)}, ${item.tokens} tokens`;
  const rows = [{ title }];
  let now = start;
  const add = (stage, seconds, group) => {
    rows.push({ stage, group, start: now, seconds, inner: true });
    now += seconds;
  };
  for (const [stage, seconds] of Object.entries(item.timings ?? {})) add(stage, seconds, "encoder");
  if (item.wire !== null && item.wire !== undefined) add("wire", item.wire, "wire");
  return rows;
}
