// Everything that requests need, from the parts of the page.
//
//   runtime = { name, card, container, model, engine, twin, engines, fallback, oneThread, tokenizer, sourceTokenizer, generation }
//
//   engine     generates: WebAssembly, or JavaScript where there is none or where the library does not know the model
//   twin       JavaScript, which also knows edits; its products and those of `model` are the library's
//   engines    what the certificate compares: the fast way, and JavaScript alone
//   fallback   why WebAssembly is not used in this browser, or null
//   oneThread  why several threads could not be started, or null
import { Container } from "./container.js";
import { Model } from "./model.js";
import { JavaScriptEngine } from "./session.js";
import { makeTokenizer } from "./tokenizers/tokenizer.js";
import { WasmEngine, findUnsupported, openProducts } from "./wasm/engine.js";
import { countThreads } from "./wasm/threads.js";

/** parts: name → ArrayBuffer; "model" is the container, "wasm" the library, "threads" the library with several threads. */
export async function openRuntime(parts) {
  const container = new Container(parts.model);
  const tokenizer = makeTokenizer(container.tokenizer);
  return {
    name: container.name,
    card: { ...container.header.card, created: Math.floor(Date.now() / 1000) },
    container,
    tokenizer,
    sourceTokenizer: container.sourceTokenizer === null ? tokenizer : makeTokenizer(container.sourceTokenizer),
    generation: container.generation,
    ...(await openEngines(container, parts)),
  };
}

async function openEngines(container, parts) {
  const alone = new JavaScriptEngine(new Model(container));
  try {
    return { ...(await openFastest(container, alone, parts)), fallback: null };
  } catch (error) {
    return { model: alone.model, engine: alone, twin: alone, engines: [alone], fallback: describe(error), oneThread: null };
  }
}

/** The engines with several threads, if this page can have them and they start. */
async function openFastest(container, alone, parts) {
  const threads = countThreads();
  if (threads === 1) return { ...(await openWasm(container, alone, parts.wasm, 1)), oneThread: null };
  try {
    return { ...(await openWasm(container, alone, parts.threads, threads)), oneThread: null };
  } catch (error) {
    return { ...(await openWasm(container, alone, parts.wasm, 1)), oneThread: describe(error) };
  }
}

async function openWasm(container, alone, bytes, threads) {
  const model = new Model(container);
  const twin = new JavaScriptEngine(model);
  const decodes = findUnsupported(model.config) === null;
  const engine = decodes ? await WasmEngine.open(model, bytes, threads) : twin;
  model.multiply = decodes ? engine.multiply : await openProducts(model, bytes, threads);
  const fast = decodes ? engine : { kind: "wasm", threads, model, open: (options) => twin.open(options) };
  return { model, engine, twin, engines: [fast, alone] };
}

const describe = (error) => String(error.message ?? error);
