// Calls of the API, with the key if there is one; what fails becomes an ApiError.

const STORED = "epd-api-key";

/** Tells "unauthorized" when the service asks for a key, and "authorized" when one was given. */
export const access = new EventTarget();

/** Uses an API key from now on, until the tab is closed. */
export function useKey(key) {
  sessionStorage.setItem(STORED, key);
  access.dispatchEvent(new Event("authorized"));
}

/** A call that failed, as OpenAI's error object tells it. `status` is 0 where there was no answer at all. */
export class ApiError extends Error {
  constructor(detail, status, headers = new Headers()) {
    super(detail.message);
    this.code = detail.code;
    this.param = detail.param ?? null;
    this.status = status;
    this.requestId = headers.get("x-request-id");
    this.retryAfter = headers.get("retry-after");
  }
}

/** The response to a call, if it is a good one. `body` is sent as JSON. Throws ApiError, or AbortError for `signal`. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(STORED);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? null : JSON.stringify(body) });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError({ code: "unreachable", message: "The service cannot be reached." }, 0);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const detail = told?.error ?? { code: "unknown", message: `The answer has HTTP status ${response.status}, and no reason.` };
  if (response.status === 401) access.dispatchEvent(new Event("unauthorized"));
  throw new ApiError(detail, response.status, response.headers);
}

/** What a call answers, as JSON. */
export const json = async (path, options) => (await call(path, options)).json();
