// Calls of the library for one stack: tokens of any rows and positions in, logits or vectors out (native/call.py).
import { NO_TAPE } from "../nn/tap.js";
import { packStack } from "./stack.js";
import { PositionTables } from "./tables.js";

const FIELDS = 23; // of Batch in native/structs.h

export class StackCall {
  /** stack: of the model in JavaScript. */
  constructor(packer, stack) {
    const { vocabulary, width } = packer.container.config;
    this.library = packer.library;
    this.stack = stack;
    this.width = width;
    this.outputs = stack.path === "decoder" ? vocabulary : width;
    this.structure = packStack(packer, stack.path);
    this.tables = new PositionTables(this.library, stack);
    this.spaces = new Map();
  }

  /** The address of at least so many bytes for a purpose; they are kept for later calls. */
  space(purpose, bytes) {
    const known = this.spaces.get(purpose);
    if (known !== undefined && known.bytes >= bytes) return known.address;
    if (known !== undefined) this.library.release(known.address);
    this.spaces.delete(purpose);
    const address = this.library.allocate(bytes);
    this.spaces.set(purpose, { address, bytes });
    return address;
  }

  /**
   * The address of the outputs of the tokens with indices `wanted` [n, outputs], valid until the next call.
   *
   * tokens     ids
   * places     of each token: row, position, visible (how many positions it attends to) and slot, as in native/structs.h
   * cache      { store, sizes, rows, capacity, origin, memory, memoryLength }: addresses and numbers, as there
   * most       no later position will be as high as this
   */
  run(tokens, { row, position, visible, slot }, wanted, cache, most) {
    const { library, tables } = this;
    const count = tokens.length;
    tables.prepare(Math.max(...position) + 1, most);
    const x = this.space("x", 4 * count * this.width);
    const outputs = this.space("outputs", 4 * wanted.length * this.outputs);
    const numbers = this.space("numbers", 4 * (FIELDS + 5 * count));
    const segments = tokens.map(() => 0);
    library.floats(x, count * this.width).set(this.stack.embed({ tokens, positions: position, segments, tape: NO_TAPE }));
    const list = (number) => numbers + 4 * (FIELDS + number * count);
    library.integers(numbers, FIELDS + 4 * count + wanted.length).set([
      ...[count, list(0), list(1), list(2), list(3), tables.positions, tables.rotation, tables.bias, x],
      ...[cache.store, cache.sizes, cache.rows, cache.capacity, cache.origin, cache.memory, cache.memoryLength],
      ...[wanted.length, list(4), outputs, 0, 0, 0, 0],
      ...[row, position, visible, slot, wanted].flat(),
    ]);
    library.call("step", this.structure, numbers);
    return outputs;
  }
}
