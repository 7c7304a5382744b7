// Requests that the page's own worker answers; the interface of core/api.js.
//
//   page → worker   { id, path, body, stream }   { id, abort: true }
//   worker → page   { id, piece }   { id, value }   { id, error: { message, status, param, code } }
import { ApiError } from "../core/api.js";

/** worker: a Worker, or anything else with postMessage and onmessage. */
export function makeApi(worker) {
  const pending = new Map(); // id → function that gets the worker's messages
  let lastId = 0;
  worker.addEventListener("message", ({ data }) => pending.get(data.id)?.(data));

  /** Messages of one request, in order; leaving the loop early aborts it. */
  async function* ask(path, body, { signal, stream = false }) {
    signal?.throwIfAborted();
    const id = ++lastId;
    const messages = [];
    let wake = null;
    const receive = (message) => {
      messages.push(message);
      wake?.();
    };
    const onAbort = () => receive({ aborted: true });
    pending.set(id, receive);
    signal?.addEventListener("abort", onAbort);
    let ended = false;
    try {
      worker.postMessage({ id, path, body, stream });
      for (;;) {
        while (!messages.length) await new Promise((done) => (wake = done));
        const message = messages.shift();
        if (signal?.aborted) throw new DOMException("The request was aborted.", "AbortError");
        ended = !("piece" in message);
        if (message.error) throw new ApiError(message.error.message, message.error);
        if (ended) return message.value;
        yield message.piece;
      }
    } finally {
      pending.delete(id);
      signal?.removeEventListener("abort", onAbort);
      if (!ended) worker.postMessage({ id, abort: true });
    }
  }

  const value = async (...given) => (await ask(...given).next()).value;
  return {
    get: (path, { signal } = {}) => value(path, null, { signal }),
    post: (path, body, { signal } = {}) => value(path, body, { signal }),
    stream: (path, body, { signal } = {}) => ask(path, { ...body, stream: true }, { signal, stream: true }),
  };
}
