// Decoding by the library step.wasm; the same interface as session.js.
//
//   const engine = await WasmEngine.open(model, bytes, threads);     bytes: of step.wasm, or step_threads.wasm if threads > 1
//   model.multiply = engine.multiply;                                the model's own products by the library, too
//   const session = await engine.open({ rows: 4, capacity: 128 });
import { RequestError } from "../errors.js";
import { Library } from "./library.js";
import { Packer } from "./pack.js";
import { Session } from "./session.js";
import { packMemory } from "./stack.js";
import { StackCall } from "./stack_call.js";

/** Why the library cannot decode with a model of this config, as part of a sentence; null if it can. */
export function findUnsupported(config) {
  if (config.kind === "encoder") return "it has no decoder";
  if (config.labels !== null) return "it has labels instead of tokens";
  return config.experts > 0 ? "it has experts" : null;
}

export class WasmEngine {
  /** model: the model in JavaScript (model.js), which computes embeddings and tables of positions. */
  static async open(model, bytes, threads = 1) {
    const reason = findUnsupported(model.config);
    if (reason !== null) throw new RequestError(`The WebAssembly engine cannot run this model: ${reason}.`);
    const library = await Library.open(bytes, threads);
    try {
      return new WasmEngine(model, library);
    } catch (error) {
      library.close();
      throw error;
    }
  }

  constructor(model, library) {
    this.kind = "wasm";
    this.threads = library.threads;
    this.model = model;
    this.library = library;
    this.packer = new Packer(library, model.container);
    this.decoder = new StackCall(this.packer, model.decoder);
    this.encoder = model.encoder === null ? null : new StackCall(this.packer, model.encoder);
    this.memory = model.encoder === null ? [] : packMemory(this.packer);
    this.multiply = makeMultiply(library, this.packer);
  }

  /** A session of at most so many rows of at most so many tokens. */
  async open({ rows, capacity, edits = new Map() }) {
    if (edits.size > 0) throw new RequestError("The WebAssembly engine cannot change what is inside a model. Use the engine in JavaScript.");
    return new Session(this, rows, capacity);
  }
}

/** The library's products for a model that it cannot decode with: model.multiply. */
export async function openProducts({ container }, bytes, threads = 1) {
  const library = await Library.open(bytes, threads);
  return makeMultiply(library, new Packer(library, container));
}

const makeMultiply = (library, packer) => (name, x, rows) => multiply(library, packer.matrix(name), x, rows);

/** x [rows, K] → x Wᵀ [rows, N]; a new array. */
function multiply(library, product, x, rows) {
  const [structure, from] = [library.copyIntegers(product), library.copyFloats(x)];
  const to = library.allocate(4 * rows * product[1]);
  library.call("product", structure, rows, from, to);
  const y = library.floats(to, rows * product[1]).slice();
  for (const address of [structure, from, to]) library.release(address);
  return y;
}
