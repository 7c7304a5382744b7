// Attention, as in chumoku/nn/attention.py:
//
//   Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + bias) V        over the keys that the mask allows
//
//   queries   [T, H · K], keys and values [S, G · K]; H / G query heads share one key/value head
//   context   { causal, window, rotation, bias }: see stack.js
//   sequence  { start, count, past, cache, memory }: rows start … start + count − 1, at positions past, past + 1 …
import { RequestError } from "../errors.js";
import { softCap } from "./activations.js";
import { Linear } from "./linear.js";
import { makeRmsNorm } from "./norms.js";
import { softmaxRow } from "./softmax.js";

const LOWEST = -3.4028234663852886e38; // the lowest float32: masked scores have it at hidden keys
const NAMES = ["queries", "keys", "values", "scores", "masked_scores", "weights", "heads", "output"];

export class Attention {
  constructor(model, path, { relative = false } = {}) {
    const { config } = model;
    const { width, heads, key_heads: keyHeads, key_width: headWidth } = config;
    this.path = path;
    this.heads = heads;
    this.keyHeads = keyHeads;
    this.headWidth = headWidth;
    this.cap = config.score_cap;
    this.queryFactor = config.attention_scale === null ? 1 : config.attention_scale * Math.sqrt(headWidth);
    this.query = new Linear(model, `${path}.query`, width, heads * headWidth);
    this.key = new Linear(model, `${path}.key`, width, keyHeads * headWidth);
    this.value = new Linear(model, `${path}.value`, width, keyHeads * headWidth);
    this.output = new Linear(model, `${path}.output`, heads * headWidth, width);
    this.queryNorm = makeHeadNorm(model, `${path}.query_norm`, heads);
    this.keyNorm = makeHeadNorm(model, `${path}.key_norm`, keyHeads);
    this.clip = config.relative_clip;
    this.relative = relative ? model.container.tensor(`${path}.relative.table`, [2 * this.clip + 1, headWidth]).data : null;
  }

  addresses() {
    return NAMES.map((name) => `${this.path}.${name}`);
  }

  /** The keys and values of a sequence [rows, D], before their rotation. */
  project(source) {
    return { keys: this.keyNorm(this.key.apply(source)), values: this.value.apply(source) };
  }

  /** Self-attention of layer `layer`: [rows, D] → [rows, D]. */
  apply(x, batch, context, layer) {
    const queries = this.computeQueries(x);
    const { keys, values } = this.project(x);
    if (context.rotation !== null) {
      for (const each of [queries, keys]) context.rotation.rotate(each, this.headWidth, batch.positions);
    }
    const width = this.keyHeads * this.headWidth;
    return this.attendAll(queries, batch, context, ({ start, count, cache }) => {
      const [own, ownValues] = [keys, values].map((each) => each.subarray(start * width, (start + count) * width));
      return cache === null ? { keys: own, values: ownValues, length: count } : cache.append(layer, own, ownValues);
    });
  }

  /** Attention to the encoder output, whose keys and values each sequence has for every layer. */
  applyCross(x, batch, context, layer) {
    return this.attendAll(this.computeQueries(x), batch, context, ({ memory }) => {
      if (memory === null) throw new RequestError("This decoder needs an encoder output: encode a source first.");
      return memory[layer];
    });
  }

  computeQueries(x) {
    const queries = this.queryNorm(this.query.apply(x));
    if (this.queryFactor !== 1) for (let i = 0; i < queries.length; i++) queries[i] *= this.queryFactor;
    return queries;
  }

  attendAll(queries, { sequences, tape }, context, findKeys) {
    const width = this.heads * this.headWidth;
    const heads = new Float32Array(queries.length);
    for (const sequence of sequences) {
      const [from, to] = [sequence.start * width, (sequence.start + sequence.count) * width];
      heads.set(this.attend(queries.subarray(from, to), findKeys(sequence), sequence, context, tape), from);
    }
    return tape.tapRows(`${this.path}.output`, this.output.apply(heads), this.output.outputs);
  }

  /** The heads [T, H · K] of one sequence. */
  attend(queries, { keys, values, length }, { count, past }, context, tape) {
    const at = (name) => `${this.path}.${name}`;
    const size = { count, past, length };
    const inspected = tape.wants(at("scores")) || tape.wants(at("masked_scores"));
    this.tapHeads(tape, at("queries"), queries, this.heads, count);
    this.tapHeads(tape, at("keys"), keys, this.keyHeads, length);
    values = this.tapHeads(tape, at("values"), values, this.keyHeads, length);
    const scores = this.computeScores(queries, keys, size, context, inspected);
    const shape = [this.heads, count, length];
    if (inspected) tape.tap(at("scores"), { shape, data: scores.slice() });
    if (inspected) tape.tap(at("masked_scores"), { shape, data: fillHidden(scores.slice(), size, context, LOWEST) });
    const weights = tape.tap(at("weights"), { shape, data: computeWeights(scores, size, context) }).data;
    const heads = this.mixValues(weights, values, size, tape.edits.has(at("weights")) ? null : context);
    return this.tapHeads(tape, at("heads"), heads, this.heads, count);
  }

  /** Q Kᵀ / √d_k + bias [H, T, S], soft-capped; those of hidden keys only if `all`. */
  computeScores(queries, keys, { count, past, length }, context, all) {
    const { heads, headWidth, keyHeads, relative } = this;
    const scores = new Float32Array(heads * count * length);
    const bias = context.bias;
    const factor = 1 / Math.sqrt(headWidth);
    for (let head = 0, row = 0; head < heads; head++) {
      const keyHead = Math.floor((head * keyHeads) / heads) * headWidth;
      for (let t = 0; t < count; t++, row += length) {
        const query = (t * heads + head) * headWidth;
        const position = past + t;
        const distances = relative === null ? null : this.distanceScores(queries, query);
        const low = all ? 0 : firstKey(context, position);
        const high = all ? length : endOfKeys(context, position, length);
        for (let s = low; s < high; s++) {
          let dot = 0;
          for (let k = 0, key = s * keyHeads * headWidth + keyHead; k < headWidth; k++) dot += queries[query + k] * keys[key + k];
          if (distances !== null) dot += distances[Math.min(Math.max(position - s, -this.clip), this.clip) + this.clip];
          scores[row + s] = dot * factor + (bias === null ? 0 : bias.values[head * bias.span + position - s - bias.low]);
        }
      }
    }
    return softCap(scores, this.cap);
  }

  /** q·r for every distance −c … c. */
  distanceScores(queries, query) {
    const scores = new Float64Array(2 * this.clip + 1);
    for (let at = 0; at < scores.length; at++) {
      for (let k = 0; k < this.headWidth; k++) scores[at] += queries[query + k] * this.relative[at * this.headWidth + k];
    }
    return scores;
  }

  /** Σ_s weight · value [T, H · K]; without a context, over all keys. */
  mixValues(weights, values, { count, past, length }, context) {
    const { heads, headWidth, keyHeads } = this;
    const mixed = new Float32Array(count * heads * headWidth);
    const sum = new Float64Array(headWidth);
    for (let head = 0, row = 0; head < heads; head++) {
      const keyHead = Math.floor((head * keyHeads) / heads) * headWidth;
      for (let t = 0; t < count; t++, row += length) {
        const low = context === null ? 0 : firstKey(context, past + t);
        const high = context === null ? length : endOfKeys(context, past + t, length);
        sum.fill(0);
        for (let s = low; s < high; s++) {
          const weight = weights[row + s];
          for (let k = 0, value = s * keyHeads * headWidth + keyHead; k < headWidth; k++) sum[k] += weight * values[value + k];
        }
        mixed.set(sum, (t * heads + head) * headWidth);
      }
    }
    return mixed;
  }

  /** Tap [rows, heads · K] as [heads, rows, K]. */
  tapHeads(tape, address, x, heads, rows) {
    if (!tape.wants(address)) return x;
    const used = x.subarray(0, rows * heads * this.headWidth);
    const shape = [heads, rows, this.headWidth];
    const tensor = tape.tap(address, { shape, data: swapAxes(used, rows, heads, this.headWidth) });
    return swapAxes(tensor.data, heads, rows, this.headWidth);
  }
}

/** RMS norm of each head or of all heads together, as the config says; otherwise nothing. */
function makeHeadNorm(model, path, heads) {
  const { query_key_norm: kind, key_width: headWidth } = model.config;
  if (kind === "none") return (x) => x;
  return makeRmsNorm(model, path, kind === "all" ? heads * headWidth : headWidth);
}

/** [a, b, width] → [b, a, width]. */
export function swapAxes(x, a, b, width) {
  const y = new Float32Array(x.length);
  for (let i = 0; i < a; i++) {
    for (let j = 0; j < b; j++) y.set(x.subarray((i * b + j) * width, (i * b + j + 1) * width), (j * a + i) * width);
  }
  return y;
}

// The keys that a query sees are neighbors: from firstKey up to, but not including, endOfKeys.
const firstKey = ({ window }, position) => (window === null ? 0 : Math.max(0, position - window + 1));

function endOfKeys({ causal, window }, position, length) {
  const near = window === null ? length : position + window;
  return Math.min(length, causal ? Math.min(near, position + 1) : near);
}

/** Give hidden keys the same number, in place; scores are [H, T, S]. */
function fillHidden(scores, { count, past, length }, context, value) {
  for (let row = 0; row * length < scores.length; row++) {
    const position = past + (row % count);
    scores.fill(value, row * length, row * length + firstKey(context, position));
    scores.fill(value, row * length + endOfKeys(context, position, length), (row + 1) * length);
  }
  return scores;
}

function computeWeights(scores, size, context) {
  const { count, past, length } = size;
  for (let row = 0; row * length < scores.length; row++) {
    const position = past + (row % count);
    softmaxRow(scores, row * length + firstKey(context, position), row * length + endOfKeys(context, position, length));
  }
  return fillHidden(scores, size, context, 0);
}
