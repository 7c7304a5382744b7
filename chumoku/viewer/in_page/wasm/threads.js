// The threads of the library step_threads.wasm: workers with the same memory, which sleep between calls.
//
//   worker → thread   { thread: { module, memory, pool, stack, space } }
//   thread → worker   { ready: true }, then it only waits for calls of the library (native/thread_pool_wasm.h)
//
// Memory can be shared only where the page is isolated from other origins: it is served with the headers
// Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp.

const MOST = 8;
const STACK = 262144; // bytes, as in chumoku/web/build_wasm.py
const PATIENCE = 20000; // ms until all threads must have started

/** How many threads to use here. Half of the processors: two often share a core, and other pages need some, too. */
export function countThreads() {
  if (!globalThis.crossOriginIsolated) return 1;
  const processors = globalThis.navigator?.hardwareConcurrency ?? 1;
  return Math.min(processors, MOST, Math.max(2, Math.ceil(processors / 2)));
}

/** Start so many threads, beside this one, for a library's pool: their workers. url: a script that passes { thread } to runThread. */
export async function startThreads(library, count, url = globalThis.location.href) {
  const { module, pool, functions } = library;
  const workers = [];
  try {
    const started = Array.from({ length: count }, () => {
      const stack = library.allocate(STACK) + STACK;
      const space = library.allocate(functions.__tls_size.value);
      const worker = new Worker(url);
      workers.push(worker);
      return startThread(worker, { module, memory: library.memory, pool, stack, space });
    });
    await Promise.all(started);
    return workers;
  } catch (error) {
    for (const worker of workers) worker.terminate();
    throw error;
  }
}

function startThread(worker, thread) {
  return new Promise((ready, failed) => {
    const fail = (reason) => failed(new Error(reason ?? "a thread could not be started"));
    const timer = setTimeout(() => fail("a thread did not start in time"), PATIENCE);
    worker.onerror = (event) => {
      event.preventDefault();
      fail(event.message);
    };
    worker.onmessage = ({ data }) => {
      clearTimeout(timer);
      if (data.ready) ready();
      else fail(data.failed);
    };
    worker.postMessage({ thread });
  });
}

/** Compute as a thread of a pool; this never returns. */
export function runThread({ module, memory, pool, stack, space }) {
  const { exports: functions } = new WebAssembly.Instance(module, { env: { memory } });
  functions.__stack_pointer.value = stack;
  functions.__wasm_init_tls(space);
  postMessage({ ready: true });
  for (let round = 0; ; ) {
    try {
      round = functions.work_round(pool, round);
    } catch {
      functions.__stack_pointer.value = stack;
      round = functions.abandon_round(pool);
    }
  }
}
