// What the page answers: the routes of the server that its views use.
//
//   route → handler(runtime, body, check) → the server's JSON; of STREAMS → its pieces, one by one
import { certify } from "./certificate.js";
import { chatCompletions, completions, streamChatCompletions, streamCompletions } from "./decoding/completions.js";
import { translate } from "./decoding/translate.js";
import { RequestError } from "./errors.js";
import { LOOK_ROUTES } from "./look/routes.js";

async function listModels({ card }) {
  return { object: "list", data: [card] };
}

async function health({ engines: [{ kind, threads }], fallback, oneThread }) {
  return { status: "ok", engine: kind, threads, fallback, one_thread: oneThread };
}

const ROUTES = {
  "/health": health,
  "/v1/models": listModels,
  "/v1/translate": translate,
  "/v1/completions": completions,
  "/v1/chat/completions": chatCompletions,
  ...LOOK_ROUTES,
};
const STREAMS = {
  "/v1/completions": streamCompletions,
  "/v1/chat/completions": streamChatCompletions,
  "/v1/certificate": certify,
};

/** The handler of a route. */
export function findHandler(path, stream) {
  const table = stream ? STREAMS : ROUTES;
  if (!Object.hasOwn(table, path)) throw new RequestError("There is nothing here.", { status: 404 });
  return table[path];
}
