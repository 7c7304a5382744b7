// Rows of tokens that grow, branch and go back, with their keys and values in the memory of the library.
import { RequestError } from "../errors.js";
import { softCap } from "../nn/activations.js";
import { Slots } from "./slots.js";

const AT_ONCE = 64; // tokens in one call

export class Session {
  constructor(engine, rows, capacity) {
    const { config } = engine.model;
    // Only learned positions have an end.
    const positions = config.position === "learned" ? Math.min(capacity, config.context) : capacity;
    Object.assign(this, { engine, config, library: engine.library });
    this.slots = new Slots(engine.library, config, rows, positions);
    this.encoded = []; // { address, length } of the cross-attention keys and values [L, 2, S, G·K] of each source
    this.sources = []; // the same for each row
  }

  /** Start again with one empty row per source; rows with the same array share its encoder output. */
  async encode(sources, { check = null } = {}) {
    if (this.engine.encoder === null) throw new RequestError("Sources were given, but this model has no encoder.");
    if (sources.length > this.slots.rows) throw new RequestError(`This session has ${this.slots.rows} rows, and ${sources.length} sources were given.`);
    this.releaseSources();
    const known = new Map();
    for (const source of sources) {
      if (check !== null) await check();
      if (known.has(source)) continue;
      known.set(source, this.encodeOne(source));
      this.encoded.push(known.get(source));
    }
    this.sources = sources.map((source) => known.get(source));
    this.slots.clear(sources.length);
  }

  encodeOne(source) {
    const { library, config } = this;
    const { encoder, memory, model } = this.engine;
    if (source.length === 0) throw new RequestError("Every row needs a source of one token or more.");
    const length = source.length, size = 4 * length * config.key_heads * config.key_width;
    const slots = new Slots(library, { ...config, decoder_depth: config.encoder_depth }, 1, length);
    const zeros = source.map(() => 0), position = source.map((_, place) => place), visible = source.map(() => length);
    const states = encoder.run([...source], { row: zeros, position, visible, slot: zeros }, position, slots.addresses(), length);
    slots.close();
    const address = library.allocate(2 * memory.length * size);
    memory.forEach(({ key, value }, layer) => {
      const keys = address + 2 * layer * size;
      library.call("product", key, length, states, keys);
      library.call("product", value, length, states, keys + size);
      const view = library.floats(keys, size / 4);
      view.set(model.decoder.blocks[layer].crossAttention.keyNorm(view));
    });
    return { address, length };
  }

  /**
   * The logits after the last token of each entry, or with `all` after every token [T · V]; new arrays.
   *
   * entries   [{ row, tokens }], at most one of a row
   * check     async function that is awaited between parts of a long text; it may throw
   */
  async append(entries, { all = false, check = null } = {}) {
    this.checkEntries(entries);
    const { vocabulary } = this.config;
    const logits = entries.map(({ tokens }) => new Float32Array((all ? tokens.length : 1) * vocabulary));
    // Of each token: its row, and where its logits go, if they are wanted.
    const each = entries.flatMap(({ row, tokens }, entry) =>
      tokens.map((token, place) => ({ token, row, to: all || place === tokens.length - 1 ? logits[entry].subarray(all ? place * vocabulary : 0) : null })),
    );
    for (let start = 0; start < each.length; start += AT_ONCE) {
      if (start > 0 && check !== null) await check();
      this.appendPart(each.slice(start, start + AT_ONCE));
    }
    return logits;
  }

  appendPart(each) {
    const { slots, sources, library } = this;
    const lengths = [...slots.lengths];
    const row = each.map((one) => one.row);
    const position = row.map((number) => lengths[number]++);
    const places = { row, position, visible: position.map((place) => place + 1), slot: row.map((number) => slots.own[number]) };
    const wanted = each.flatMap(({ to }, place) => (to === null ? [] : [place]));
    const cache = slots.addresses();
    if (sources.length > 0) {
      cache.memory = this.engine.decoder.space("sources", 8 * sources.length);
      cache.memoryLength = cache.memory + 4 * sources.length;
      library.integers(cache.memory, 2 * sources.length).set([...sources.map((one) => one.address), ...sources.map((one) => one.length)]);
    }
    const outputs = this.engine.decoder.run(each.map((one) => one.token), places, wanted, cache, slots.capacity);
    slots.lengths = lengths;
    wanted.forEach((place, number) => this.copyLogits(outputs + 4 * number * this.config.vocabulary, each[place].to));
  }

  /** Copy logits, divided by √D and soft-capped, each if the config says so. */
  copyLogits(address, to) {
    const { scale_logits: scale, logit_cap: cap, width, vocabulary } = this.config;
    const logits = to.subarray(0, vocabulary);
    logits.set(this.library.floats(address, vocabulary));
    if (scale) for (let i = 0; i < vocabulary; i++) logits[i] /= Math.sqrt(width);
    softCap(logits, cap);
  }

  checkEntries(entries) {
    const { lengths, live, capacity } = this.slots;
    if (this.engine.encoder !== null && this.sources.length === 0) throw new RequestError("This decoder needs an encoder output: encode a source first.");
    if (new Set(entries.map(({ row }) => row)).size < entries.length) throw new RequestError("Each row can be given only once.");
    for (const { row, tokens } of entries) {
      if (!(Number.isInteger(row) && row >= 0 && row < live)) throw new RequestError(`There is no row ${row}: there are ${live}.`);
      if (tokens.length === 0) throw new RequestError("Every row needs one token or more.");
      if (lengths[row] + tokens.length > capacity) {
        throw new RequestError(`A row would have ${lengths[row] + tokens.length} tokens, but there is room for only ${capacity}. Shorten the text.`);
      }
    }
  }

  /** Row i becomes a copy of the previous row parents[i]; from now on there are as many rows as parents. */
  reorder(parents) {
    this.slots.reorder(parents);
    if (this.sources.length > 0) this.sources = parents.map((row) => this.sources[row]);
  }

  truncate(row, length) {
    this.slots.truncate(row, length);
  }

  length(row) {
    return this.slots.lengths[row];
  }

  /** Release the memory of keys and values; the session cannot be used any more. */
  close() {
    this.slots.close();
    this.releaseSources();
  }

  releaseSources() {
    for (const { address } of this.encoded.splice(0)) this.library.release(address);
    this.sources = [];
  }
}
