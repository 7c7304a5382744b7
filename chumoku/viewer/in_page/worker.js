// The worker: reads the payload, opens the model, and answers the page's requests. Its threads have the same script.
//
//   page → worker   { open: parts }   { chunk: text } …   { end: true }   then requests (api.js)
//   worker → page   { read: bytes }   { opened: true } or { failed: message, damaged }
//   worker → thread { thread } (wasm/threads.js)
import { DamagedError, PayloadReader } from "./payload.js";
import { ContainerError } from "./container.js";
import { Requests } from "./requests.js";
import { findHandler } from "./routes.js";
import { openRuntime } from "./runtime.js";
import { runThread } from "./wasm/threads.js";

let reader = null;
let requests = null;

async function open() {
  const runtime = await openRuntime(await reader.finish());
  reader = null;
  const answer = (path, stream) => (body, check) => findHandler(path, stream)(runtime, body, check);
  requests = new Requests(answer, (message) => postMessage(message));
  postMessage({ opened: true });
}

async function receive(message) {
  if (requests) return requests.receive(message);
  if (message.thread) runThread(message.thread);
  if (message.open) reader = new PayloadReader(message.open);
  if (message.chunk) {
    reader.add(message.chunk);
    postMessage({ read: reader.filled });
  }
  return message.end && open();
}

addEventListener("message", async ({ data }) => {
  try {
    await receive(data);
  } catch (error) {
    const damaged = error instanceof DamagedError || error instanceof ContainerError;
    postMessage({ failed: String(error?.message ?? error), damaged });
  }
});
