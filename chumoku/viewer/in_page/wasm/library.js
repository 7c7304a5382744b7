// The library step.wasm, or step_threads.wasm with several threads, compiled from the C++ of the native engine
// (chumoku/web/build_wasm.py), and its memory.
//
// Structures of native/structs.h have fields of 4 bytes here, pointers included, so they are written as flat lists of
// numbers. Views of the memory are made for each use, because they become invalid when it grows.
import { RequestError } from "../errors.js";
import { startThreads } from "./threads.js";

const TOO_LARGE = "There is not enough memory in this browser. Close other pages, or use fewer tokens or rows at once.";
const SIZES = [20, 16, 48, 384, 104, 92]; // bytes of Product, Norm, Norms, Layer, Stack and Batch

const PAGES = { initial: 16, maximum: 65535 }; // of shared memory, 64 KiB each

export class Library {
  /** bytes: the content of step.wasm, or of step_threads.wasm if there is more than one thread. */
  static async open(bytes, threads = 1) {
    const module = await WebAssembly.compile(bytes);
    const shared = threads > 1 ? new WebAssembly.Memory({ ...PAGES, shared: true }) : null;
    const { exports: functions } = await WebAssembly.instantiate(module, shared === null ? {} : { env: { memory: shared } });
    const library = new Library(module, functions, shared ?? functions.memory, threads);
    if (threads > 1) library.workers = await startThreads(library, threads - 1);
    return library;
  }

  constructor(module, functions, memory, threads) {
    Object.assign(this, { module, functions, memory, threads, workers: [] });
    functions._initialize();
    this.pool = functions.pool_open(threads);
    const wrong = SIZES.findIndex((size, which) => functions.sizes(which) !== size);
    if (wrong >= 0) throw new Error(`structure ${wrong} of step.wasm has ${functions.sizes(wrong)} bytes, not ${SIZES[wrong]}`);
  }

  /** The address of so many bytes, at a multiple of 64; their content is undefined. */
  allocate(bytes) {
    const address = bytes < 2 ** 32 ? this.functions.allocate(bytes) >>> 0 : 0;
    if (address === 0) throw new RequestError(TOO_LARGE, { status: 413 });
    return address;
  }

  release(address) {
    this.functions.release(address);
  }

  bytes(address, count) {
    return new Uint8Array(this.memory.buffer, address, count);
  }

  floats(address, count) {
    return new Float32Array(this.memory.buffer, address, count);
  }

  integers(address, count) {
    return new Int32Array(this.memory.buffer, address, count);
  }

  /** Copy numbers into new memory, as floats or as integers. */
  copyFloats(numbers) {
    const address = this.allocate(4 * numbers.length);
    this.floats(address, numbers.length).set(numbers);
    return address;
  }

  copyIntegers(numbers) {
    const address = this.allocate(4 * numbers.length);
    this.integers(address, numbers.length).set(numbers);
    return address;
  }

  /** Call a function with the thread pool. If memory for its working space is missing, the library traps. */
  call(name, ...values) {
    const { functions, pool } = this;
    const stack = functions.__stack_pointer.value;
    try {
      functions[name](pool, ...values);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      functions.__stack_pointer.value = stack;
      functions.recover(pool);
      throw new RequestError(TOO_LARGE, { status: 413 });
    }
  }

  /** Stop the other threads; the library cannot be used any more. */
  close() {
    for (const worker of this.workers) worker.terminate();
  }
}

const number = new Float32Array(1);
const bits = new Int32Array(number.buffer);

/** The bits of a float as an integer, for a structure. */
export function floatBits(value) {
  number[0] = value;
  return bits[0];
}
