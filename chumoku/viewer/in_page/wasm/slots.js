// The rows of a session and the slots of its keys and values, as in native/engine.py: keys and values are never moved when
// rows are reordered.
//
//   store    L × [2, R, G, C, K]    keys and values; R slots of C positions. New ones of a row go to its own slot
//   origin   [R, C]                 for each position of a row, the slot that holds it
//
// Layers with an attention window keep all positions, unlike there.
import { RequestError } from "../errors.js";

export class Slots {
  constructor(library, config, rows, capacity) {
    Object.assign(this, { library, rows, capacity, heads: config.key_heads, width: config.key_width });
    this.layers = config.decoder_depth;
    this.clear(rows);
    this.size = 2 * rows * capacity * this.heads * this.width; // numbers of a layer
    this.memory = [library.allocate(4 * this.layers * this.size), library.allocate(4 * rows * capacity)];
    this.origin = this.memory[1];
    this.store = library.copyIntegers(Array.from({ length: this.layers }, (_, layer) => this.layer(layer)));
    this.sizes = library.copyIntegers(new Array(this.layers).fill(capacity));
    this.memory.push(this.store, this.sizes);
  }

  /** Start again with so many empty rows. */
  clear(rows) {
    this.lengths = new Array(rows).fill(0);
    this.own = this.lengths.map((_, row) => row); // the slot of each row
    this.shared = false; // whether rows may share cached positions
  }

  close() {
    for (const address of this.memory.splice(0)) this.library.release(address);
  }

  /** The address of a layer's keys and values. */
  layer(number) {
    return this.memory[0] + 4 * number * this.size;
  }

  /** What a call of the library needs to know. */
  addresses() {
    const { store, sizes, rows, capacity, origin } = this;
    return { store, sizes, rows, capacity, origin, memory: 0, memoryLength: 0 };
  }

  get live() {
    return this.lengths.length;
  }

  /** The slots of the positions of a row; a view that is valid until memory is allocated. */
  originOf(row) {
    return this.library.integers(this.origin + 4 * row * this.capacity, this.capacity);
  }

  /** Row i becomes a copy of the previous row parents[i]. */
  reorder(parents) {
    if (parents.length > this.rows || !parents.every((row) => row >= 0 && row < this.live)) {
      throw new RequestError(`Rows ${parents} cannot be selected: ${this.live} exist, and there is room for ${this.rows}.`);
    }
    const own = this.slotsAfter(parents);
    this.shared ||= new Set(parents).size < parents.length;
    const used = Math.max(0, ...this.lengths);
    const origins = parents.map((row) => this.originOf(row).slice(0, used));
    origins.forEach((origin, row) => this.originOf(row).set(origin));
    this.lengths = parents.map((row) => this.lengths[row]);
    this.assign(own);
  }

  /** Which rows keep their slots; the others get null. */
  slotsAfter(parents) {
    const shared = new Set(parents).size < parents.length;
    // If all rows have the same length, no cached position lies where any of them will write.
    if (shared && new Set(this.lengths).size === 1) return parents.map((_, place) => this.own[place] ?? null);
    const keeper = new Map(parents.map((row, place) => [row, place]));
    for (const row of keeper.keys()) if (parents[row] === row) keeper.set(row, row);
    return parents.map((row, place) => (keeper.get(row) === place ? this.own[row] : null));
  }

  truncate(row, length) {
    if (!(row < this.live && length >= 0 && length <= this.lengths[row])) {
      throw new RequestError(`Row ${row} of ${this.lengths[row] ?? 0} tokens cannot be truncated to ${length}.`);
    }
    const conflict = this.shared && this.lengths.some((end, other) => other !== row && this.originOf(other).subarray(length, end).includes(this.own[row]));
    this.lengths[row] = length;
    if (conflict) this.assign(this.own.map((slot, place) => (place === row ? null : slot)));
  }

  /** Give each row a slot: the one it has, or one that holds no position in use. */
  assign(own) {
    this.own = own;
    const missing = own.flatMap((slot, row) => (slot === null ? [row] : []));
    if (missing.length === 0) return;
    const empty = Array.from({ length: this.rows }, (_, slot) => slot).filter((slot) => !own.includes(slot));
    const used = new Set(this.lengths.flatMap((length, row) => [...new Set(this.originOf(row).subarray(0, length))]));
    const free = empty.filter((slot) => !used.has(slot));
    const enough = free.length >= missing.length;
    missing.forEach((row, place) => (own[row] = (enough ? free : empty)[place]));
    if (!enough) this.copyToOwnSlots();
  }

  /** Copy all cached positions of each row into its own slot. */
  copyToOwnSlots() {
    const { heads, width, capacity, rows, live } = this;
    const origins = this.lengths.map((length, row) => this.originOf(row).slice(0, length));
    const half = rows * heads * capacity * width;
    for (let layer = 0; layer < this.layers; layer++) {
      const store = this.library.floats(this.layer(layer), this.size);
      for (const part of [store.subarray(0, half), store.subarray(half)]) {
        const before = part.slice();
        for (let row = 0; row < live; row++) {
          for (const [position, slot] of origins[row].entries()) {
            for (let head = 0; head < heads; head++) {
              const from = ((slot * heads + head) * capacity + position) * width;
              part.set(before.subarray(from, from + width), ((this.own[row] * heads + head) * capacity + position) * width);
            }
          }
        }
      }
    }
    origins.forEach((origin, row) => this.originOf(row).fill(this.own[row], 0, origin.length));
    this.shared = false;
  }
}
