// Requests to the server.
//
//   await api.get("/v1/models", { signal })             the response, or an ApiError with the server's message
//   await api.post("/v1/translate", body, { signal })
//   for await (const piece of api.stream("/v1/completions", body, { signal })) …
import { t } from "./i18n.js";
import { events } from "./sse.js";

export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status; // 0: no response
    this.param = param;
    this.code = code;
  }
}

/** Whether an error only means that this page aborted the request. */
export const isAbort = (error) => error?.name === "AbortError";

// A lone surrogate cannot be encoded in UTF-8: it is replaced by U+FFFD.
const replaceLoneSurrogates = (_, value) => (typeof value === "string" && value.toWellFormed ? value.toWellFormed() : value);

/** onNoResponse: the server did not respond; onKeyRequired: it requires a key; onUnknownModel: it does not serve the model. */
export function makeApi({ onNoResponse = () => {}, onKeyRequired = () => {}, onUnknownModel = () => {} } = {}) {
  async function send(path, { method = "GET", body, signal, accept = "application/json" } = {}) {
    const headers = { Accept: accept };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body, replaceLoneSurrogates),
        credentials: "same-origin",
        redirect: "error",
        cache: "no-store",
      });
    } catch (error) {
      if (isAbort(error)) throw error;
      onNoResponse();
      throw new ApiError(t("silent"));
    }
    if (!response.ok) throw await readError(response, { onKeyRequired, onUnknownModel });
    return response;
  }

  async function json(path, options) {
    const response = await send(path, options);
    try {
      return await response.json();
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new ApiError(t("garbled"), { status: response.status });
    }
  }

  return {
    get: (path, { signal } = {}) => json(path, { signal }),
    post: (path, body, { signal } = {}) => json(path, { method: "POST", body, signal }),
    async *stream(path, body, { signal } = {}) {
      const streamed = { method: "POST", body: { ...body, stream: true }, accept: "text/event-stream" };
      const response = await send(path, { ...streamed, signal });
      try {
        for await (const data of events(response.body)) {
          if (data === "[DONE]") return;
          const piece = parseJson(data);
          if (piece.error) throw new ApiError(piece.error.message, { status: response.status, ...piece.error });
          yield piece;
        }
      } catch (error) {
        if (isAbort(error) || error instanceof ApiError) throw error;
        onNoResponse();
        throw new ApiError(t("broken"));
      }
      throw new ApiError(t("broken")); // the stream ended without [DONE]
    },
  };
}

function parseJson(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError(t("garbled"));
  }
}

async function readError(response, { onKeyRequired, onUnknownModel }) {
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // The body is not JSON: only the status is known.
  }
  if (response.status === 401) onKeyRequired();
  if (details.code === "model_not_found") onUnknownModel();
  const message = typeof details.message === "string" ? details.message : t("status", { status: response.status });
  return new ApiError(message, { status: response.status, param: details.param, code: details.code });
}
