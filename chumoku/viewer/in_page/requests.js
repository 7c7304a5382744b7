// The worker's requests: one runs at a time, the others wait in order.
//
//   check()   is awaited by handlers between steps of their work; it lets messages in, and throws if the request was aborted
import { RequestError } from "./errors.js";

const PATIENCE = 12; // ms of work between two looks at the messages

class Aborted extends Error {}

/** A promise that is fulfilled after the messages that are waiting. (setTimeout waits 4 ms; a message does not.) */
function makeYield() {
  const { port1, port2 } = new MessageChannel();
  const waiting = [];
  port1.onmessage = () => waiting.shift()();
  return () => new Promise((done) => {
    waiting.push(done);
    port2.postMessage(null);
  });
}

/** answer(path): a handler (body, check) → value, or an async generator of pieces. send(message): to the page. */
export class Requests {
  constructor(answer, send) {
    this.answer = answer;
    this.send = send;
    this.known = new Map(); // id → whether it was aborted
    this.running = Promise.resolve();
    this.letMessagesIn = makeYield();
  }

  receive({ id, path, body, stream, abort }) {
    if (abort) {
      if (this.known.has(id)) this.known.set(id, true);
      return;
    }
    this.known.set(id, false);
    this.running = this.running.then(() => this.run(id, path, body, stream));
  }

  async run(id, path, body, stream) {
    let last = performance.now();
    const check = async () => {
      if (performance.now() - last > PATIENCE) {
        await this.letMessagesIn();
        last = performance.now();
      }
      if (this.known.get(id)) throw new Aborted();
    };
    await this.letMessagesIn(); // an abort may have arrived while the request waited
    try {
      await check();
      const handler = this.answer(path, stream);
      if (stream) for await (const piece of handler(body, check)) this.send({ id, piece });
      this.send({ id, value: stream ? null : await handler(body, check) });
    } catch (error) {
      if (!(error instanceof Aborted)) this.send({ id, error: describe(error) });
    } finally {
      this.known.delete(id);
    }
  }
}

function describe(error) {
  const { message, status, param, code } = error;
  if (error instanceof RequestError) return { message, status, param, code };
  return { message: String(message ?? error), status: 500, param: null, code: null };
}
