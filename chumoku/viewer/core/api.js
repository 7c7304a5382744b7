// The server, as the page sees it.
//
//   await api.get("/v1/models", { signal })             the answer, or a Failure whose message is the server's sentence
//   await api.post("/v1/translate", body, { signal })
//   for await (const piece of api.stream("/v1/completions", body, { signal })) …
import { t } from "./i18n.js";
import { events } from "./sse.js";

export class Failure extends Error {
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    this.name = "Failure";
    this.status = status; // 0: nobody answered
    this.param = param;
    this.code = code;
  }
}

/** Whether an error only says that we ourselves gave up waiting. */
export const dropped = (error) => error?.name === "AbortError";

// Half of a letter has no form in UTF-8: a mark goes in its place, and the rest of the text arrives.
const whole = (_, value) => (typeof value === "string" && value.toWellFormed ? value.toWellFormed() : value);

/** onSilence: nobody answered; onKey: a key is asked for; onStranger: the model asked is not served. */
export function makeApi({ onSilence = () => {}, onKey = () => {}, onStranger = () => {} } = {}) {
  async function ask(path, { method = "GET", body, signal, accept = "application/json" } = {}) {
    const headers = { Accept: accept };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body, whole),
        credentials: "same-origin",
        redirect: "error",
        cache: "no-store",
      });
    } catch (error) {
      if (dropped(error)) throw error;
      onSilence();
      throw new Failure(t("silent"));
    }
    if (!answer.ok) throw await failure(answer, { onKey, onStranger });
    return answer;
  }

  async function json(path, options) {
    const answer = await ask(path, options);
    try {
      return await answer.json();
    } catch (error) {
      if (dropped(error)) throw error;
      throw new Failure(t("garbled"), { status: answer.status });
    }
  }

  return {
    get: (path, { signal } = {}) => json(path, { signal }),
    post: (path, body, { signal } = {}) => json(path, { method: "POST", body, signal }),
    async *stream(path, body, { signal } = {}) {
      const streamed = { method: "POST", body: { ...body, stream: true }, accept: "text/event-stream" };
      const answer = await ask(path, { ...streamed, signal });
      try {
        for await (const data of events(answer.body)) {
          if (data === "[DONE]") return;
          const piece = parsed(data);
          if (piece.error) throw new Failure(piece.error.message, { status: answer.status, ...piece.error });
          yield piece;
        }
      } catch (error) {
        if (dropped(error) || error instanceof Failure) throw error;
        onSilence();
        throw new Failure(t("broken"));
      }
      throw new Failure(t("broken")); // the end was never said
    },
  };
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure(t("garbled"));
  }
}

async function failure(answer, { onKey, onStranger }) {
  let told = {};
  try {
    told = (await answer.json()).error ?? {};
  } catch {
    // No sentence came with it: the status is all we know.
  }
  if (answer.status === 401) onKey();
  if (told.code === "model_not_found") onStranger();
  const message = typeof told.message === "string" ? told.message : t("status", { status: answer.status });
  return new Failure(message, { status: answer.status, param: told.param, code: told.code });
}
