// What the failure contract says of each code, in a sentence.

const SENTENCES = {
  invalid_request: "The request itself is at fault, and sending it again will not help: change what the message names.",
  invalid_media: "The picture is at fault: it cannot be decoded, is of an unsupported kind, too large, or cannot be fetched.",
  invalid_api_key: "The service asks for an API key, and got none that it knows.",
  model_not_found: "Another model is served here than the one that was asked for.",
  encoder_unavailable: "No encoder is healthy, and the language service never computes vision itself. Text still works.",
  encoder_failed: "The encoder's process broke the connection or answered with an error, and no other one could take over in time.",
  encoder_lost: "The encoder showed no sign of life for too long: it hangs, or the network to it is cut.",
  encoder_overloaded: "Every healthy encoder has as much work as it takes. Try again in a moment.",
  embedding_timeout: "The embeddings did not arrive within the request's deadline.",
  embedding_incomplete: "The encoder said that it was done, but an item's embeddings never came.",
  embedding_corrupt: "The embeddings arrived damaged: their checksum or framing is wrong, so that they were not used.",
  embedding_incompatible: "The embeddings do not fit the model: another version, checkpoint, shape or count, or values that are not finite.",
  engine_overloaded: "The engine has as many requests as it takes, or is being restarted. Try again in a moment.",
  internal_error: "A bug of the service. Its log has the details under the request id.",
  unreachable: "Nothing answers at this page's address: the language service is down, or the network is cut.",
  stream_ended: "The connection broke in the middle of the answer, which is incomplete.",
};

/** What a code means. */
export const meaning = (code) => SENTENCES[code] ?? "";
