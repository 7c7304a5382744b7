// Everything that requests need, from the parts of the page.
//
//   runtime = { name, card, container, model, engine, twin, engines, tokenizer, sourceTokenizer, generation }
//
// twin is the engine in plain JavaScript, which also knows edits; engine is the fastest one; engines are both.
import { Container } from "./container.js";
import { Model } from "./model.js";
import { JavaScriptEngine } from "./session.js";
import { makeTokenizer } from "./tokenizers/tokenizer.js";

/** parts: name → ArrayBuffer; "model" is the container. */
export async function openRuntime(parts) {
  const container = new Container(parts.model);
  const model = new Model(container);
  const twin = new JavaScriptEngine(model);
  const tokenizer = makeTokenizer(container.tokenizer);
  return {
    name: container.name,
    card: container.header.card,
    container,
    model,
    engine: twin,
    twin,
    engines: [twin],
    tokenizer,
    sourceTokenizer: container.sourceTokenizer === null ? tokenizer : makeTokenizer(container.sourceTokenizer),
    generation: container.generation,
  };
}
