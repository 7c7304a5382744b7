// What the page answers: the routes of the server that its views use.
//
//   route → handler(runtime, body, check) → the server's JSON; of STREAMS → its pieces, one by one
import { RequestError } from "./errors.js";

async function listModels({ card }) {
  return { object: "list", data: [card] };
}

async function health() {
  return { status: "ok" };
}

const ROUTES = {
  "/v1/models": listModels,
  "/health": health,
};
const STREAMS = {};

/** The handler of a route. */
export function findHandler(path, stream) {
  const table = stream ? STREAMS : ROUTES;
  if (!Object.hasOwn(table, path)) throw new RequestError("There is nothing here.", { status: 404 });
  return table[path];
}
