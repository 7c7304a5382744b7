// Decoding with a key/value cache in plain JavaScript: rows of tokens that grow, branch and go back.
//
//   const session = await engine.open({ rows: 4, capacity: 128 });
//   await session.encode([source, source, other, other])              encoder-decoders: one source per row
//   const logits = await session.append([{ row: 0, tokens }, …])      after the last token of each entry: [V] each
//   session.reorder([0, 0, 2])                                        three rows: copies of old rows 0, 0 and 2
//   session.truncate(row, length)
//
// Rows of one call are computed together. With edits (as in model.forward) one after another, so that every tensor has
// the shape that it has in a forward pass; a tensor then has the new tokens only.
import { RequestError } from "./errors.js";
import { NO_TAPE, Tape } from "./nn/tap.js";

const AT_ONCE = 256; // tokens of a row that are computed in one pass; scores of more would need much memory
const FIRST_SIZE = 32; // positions for which a cache has memory at first

export class JavaScriptEngine {
  constructor(model) {
    this.model = model;
    this.kind = "javascript";
    this.threads = 1;
  }

  async open({ rows, capacity, edits = new Map() }) {
    if (this.model.decoder === null || this.model.config.labels !== null) throw new RequestError("This model does not generate text.");
    this.model.checkEdits(edits);
    return new Session(this.model, rows, capacity, edits);
  }
}

class Session {
  constructor(model, rows, capacity, edits) {
    Object.assign(this, { model, most: rows, capacity });
    this.tape = edits.size > 0 ? new Tape(() => false, edits) : NO_TAPE;
    this.rows = Array.from({ length: rows }, () => this.newRow());
  }

  newRow(memory = null) {
    const { key_heads: heads, key_width: width } = this.model.config;
    return { cache: new Cache(this.model.decoder.blocks.length, heads * width, this.capacity), memory };
  }

  /** Start again with one empty row per source; rows with the same array share its encoder output. */
  async encode(sources, { check = null } = {}) {
    if (sources.length > this.most) throw new RequestError(`This session has ${this.most} rows, and ${sources.length} sources were given.`);
    const memories = new Map();
    for (const source of sources) {
      if (!memories.has(source)) memories.set(source, await this.model.encode(source, { tape: this.tape, check }));
    }
    this.rows = sources.map((source) => this.newRow(memories.get(source)));
  }

  /** Logits after the last token of each entry, or with `all` after every token [T · V]. */
  async append(entries, { all = false, check = null } = {}) {
    this.checkEntries(entries);
    const steps = this.tape === NO_TAPE && entries.every(({ tokens }) => tokens.length <= AT_ONCE) ? [entries] : entries.map((entry) => [entry]);
    const logits = [];
    for (const step of steps) logits.push(...(await this.run(step, all, check)));
    return logits;
  }

  async run(entries, all, check) {
    const parts = entries.map(() => []);
    const longest = Math.max(...entries.map(({ tokens }) => tokens.length));
    for (let start = 0; start < longest; start += AT_ONCE) {
      const pieces = entries.map(({ row, tokens }) => ({ row, tokens: tokens.slice(start, start + AT_ONCE) }));
      const hidden = await this.runPieces(pieces, check);
      if (!all && start + AT_ONCE < longest) continue;
      const found = this.computeLogits(hidden, pieces, all);
      found.forEach((logits, at) => parts[at].push(logits));
    }
    return parts.map(join);
  }

  /** Vectors [rows, D] of new tokens, whose keys and values are then in the caches. */
  async runPieces(pieces, check) {
    const sequences = pieces.map(({ row, tokens }) => {
      const { cache, memory } = this.rows[row];
      return { tokens, past: cache.length, cache, memory };
    });
    const hidden = await this.model.decoder.apply(sequences, this.tape, check);
    for (const { cache, tokens } of sequences) cache.length += tokens.length;
    return hidden;
  }

  computeLogits(hidden, pieces, all) {
    const { width, vocabulary } = this.model.config;
    const counts = pieces.map(({ tokens }) => tokens.length);
    const ends = counts.map((_, at) => counts.slice(0, at + 1).reduce((sum, count) => sum + count, 0));
    const wanted = all ? hidden : join(ends.map((end) => hidden.subarray((end - 1) * width, end * width)));
    const { data } = this.tape.tap("logits", this.model.computeLogits(wanted));
    const lasts = all ? ends : ends.map((_, at) => at + 1);
    return lasts.map((last, at) => data.slice((at === 0 ? 0 : lasts[at - 1]) * vocabulary, last * vocabulary));
  }

  /** Row i becomes a copy of the old row parents[i]; there are as many rows as parents from now on. */
  reorder(parents) {
    if (parents.length > this.most) throw new RequestError(`This session has ${this.most} rows, and ${parents.length} were given.`);
    const used = new Set();
    this.rows = parents.map((parent) => {
      const { cache, memory } = this.rows[parent];
      const first = !used.has(parent);
      used.add(parent);
      return { cache: first ? cache : cache.copy(), memory };
    });
  }

  truncate(row, length) {
    this.rows[row].cache.length = Math.min(length, this.rows[row].cache.length);
  }

  length(row) {
    return this.rows[row].cache.length;
  }

  close() {
    this.rows = [];
  }

  checkEntries(entries) {
    const rows = entries.map(({ row }) => row);
    if (entries.length === 0 || new Set(rows).size < rows.length || !rows.every((row) => row in this.rows)) {
      throw new RequestError(`Entries must name different rows of 0 to ${this.rows.length - 1}.`);
    }
    for (const { row, tokens } of entries) {
      if (tokens.length === 0) throw new RequestError("Every entry needs at least one token.");
      if (this.length(row) + tokens.length > this.capacity) {
        throw new RequestError(`The cache has ${this.capacity} positions, ${this.length(row)} are used, and ${tokens.length} more do not fit.`);
      }
    }
  }
}

/** Keys and values of one row for every layer [length, G · K]; its memory grows up to the capacity. */
class Cache {
  constructor(layers, width, capacity) {
    Object.assign(this, { width, capacity, length: 0 });
    const empty = () => ({ keys: new Float32Array(0), values: new Float32Array(0) });
    this.layers = Array.from({ length: layers }, empty);
  }

  /** Write the keys and values of new tokens of a layer, and return all; `length` counts them only after the pass. */
  append(layer, keys, values) {
    const length = this.length + keys.length / this.width;
    const store = this.layers[layer];
    for (const [name, data] of [["keys", keys], ["values", values]]) {
      if (store[name].length < length * this.width) store[name] = this.grow(store[name], length);
      store[name].set(data, this.length * this.width);
    }
    return { ...store, length };
  }

  grow(data, length) {
    const size = Math.min(this.capacity, Math.max(length, FIRST_SIZE, (2 * data.length) / this.width));
    const larger = new Float32Array(size * this.width);
    larger.set(data.subarray(0, this.length * this.width));
    return larger;
  }

  copy() {
    const copy = new Cache(this.layers.length, this.width, this.capacity);
    copy.length = this.length;
    copy.layers = this.layers.map(({ keys, values }) => ({ keys: keys.slice(), values: values.slice() }));
    return copy;
  }
}

function join(parts) {
  if (parts.length === 1) return parts[0];
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
