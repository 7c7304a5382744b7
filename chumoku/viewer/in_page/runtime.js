// Everything that requests need, from the parts of the page.
//
//   runtime = { name, card, container, … }
import { Container } from "./container.js";

/** parts: name → ArrayBuffer; "model" is the container. */
export async function openRuntime(parts) {
  const container = new Container(parts.model);
  return { name: container.name, card: container.header.card, container };
}
