// Everything that requests need, from the parts of the page.
//
//   runtime = { name, card, container, model, engine, twin, engines, fallback, tokenizer, sourceTokenizer, generation }
//
//   engine     generates: WebAssembly, or JavaScript where there is none or where the library does not know the model
//   twin       JavaScript, which also knows edits; its products and those of `model` are the library's
//   engines    what the certificate compares: the fast way, and JavaScript alone
//   fallback   why WebAssembly is not used in this browser, or null
import { Container } from "./container.js";
import { Model } from "./model.js";
import { JavaScriptEngine } from "./session.js";
import { makeTokenizer } from "./tokenizers/tokenizer.js";
import { WasmEngine, findUnsupported, openProducts } from "./wasm/engine.js";

/** parts: name → ArrayBuffer; "model" is the container, "wasm" the library. */
export async function openRuntime(parts) {
  const container = new Container(parts.model);
  const tokenizer = makeTokenizer(container.tokenizer);
  return {
    name: container.name,
    card: container.header.card,
    container,
    tokenizer,
    sourceTokenizer: container.sourceTokenizer === null ? tokenizer : makeTokenizer(container.sourceTokenizer),
    generation: container.generation,
    ...(await openEngines(container, parts.wasm)),
  };
}

async function openEngines(container, bytes) {
  const model = new Model(container);
  const alone = new JavaScriptEngine(new Model(container));
  try {
    const twin = new JavaScriptEngine(model);
    const decodes = findUnsupported(model.config) === null;
    const engine = decodes ? await WasmEngine.open(model, bytes) : twin;
    model.multiply = decodes ? engine.multiply : await openProducts(model, bytes);
    const fast = decodes ? engine : { kind: "wasm", threads: 1, model, open: (options) => twin.open(options) };
    return { model, engine, twin, engines: [fast, alone], fallback: null };
  } catch (error) {
    return { model: alone.model, engine: alone, twin: alone, engines: [alone], fallback: String(error.message ?? error) };
  }
}
