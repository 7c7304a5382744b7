// Positions, as in chumoku/nn/positions.py; the config has their frequencies, slopes and buckets.
//
//   sinusoidal     PE(i, 2d) = sin(i f_d),  PE(i, 2d+1) = cos(i f_d), added to the embedding
//   learned        a table of vectors, one per position, added to the embedding
//   relative       score(i, j) += qᵢ·r_{i−j} / √d_k,  i−j clipped to −c … c            (attention.js)
//   relative_bias  score(i, j) += b_h(bucket(i−j))
//   alibi          score(i, j) −= m_h |i−j|
//   rotary         qᵢ and kⱼ rotated by the angles i f_d and j f_d
import { RequestError } from "../errors.js";

/** What is added to the embedding: positions → vectors [rows, D], or null. */
export function makePosition(model, path) {
  const { position } = model.config;
  if (position === "sinusoidal") return (positions) => sinusoidal(positions, model.config);
  if (position !== "learned") return null;
  const { context, width } = model.config;
  const table = model.container.tensor(`${path}.table`, [context, width]).data;
  return (positions) => lookUp(positions, table, context, width);
}

function sinusoidal(positions, { width, pairing, sinusoidal: { start }, sinusoidal_frequencies: frequencies }) {
  const x = new Float32Array(positions.length * width);
  const [step, cosine] = pairing === "half" ? [1, frequencies.length] : [2, 1];
  positions.forEach((position, row) => {
    frequencies.forEach((frequency, d) => {
      const angle = Math.fround((position + start) * frequency);
      x[row * width + d * step] = Math.sin(angle);
      if (d * step + cosine < width) x[row * width + d * step + cosine] = Math.cos(angle);
    });
  });
  return x;
}

function lookUp(positions, table, length, width) {
  const x = new Float32Array(positions.length * width);
  positions.forEach((position, row) => {
    if (position >= length) {
      throw new RequestError(`Position ${position} is beyond the table of learned positions, which ends at ${length - 1}. Shorten the text.`);
    }
    x.set(table.subarray(position * width, (position + 1) * width), row * width);
  });
  return x;
}

export class RotaryPositions {
  constructor(frequencies, magnitude, pairing) {
    this.frequencies = frequencies;
    this.magnitude = magnitude;
    this.half = pairing === "half";
    this.length = 0;
    this.prepare(64);
  }

  /** Compute cos and sin of positions 0 … length − 1, unless they are there. */
  prepare(length) {
    if (length <= this.length) return;
    this.length = Math.max(length, 2 * this.length);
    const pairs = this.frequencies.length;
    this.cos = new Float32Array(this.length * pairs);
    this.sin = new Float32Array(this.length * pairs);
    for (let position = 0, at = 0; position < this.length; position++) {
      for (let d = 0; d < pairs; d++, at++) {
        const angle = Math.fround(position * this.frequencies[d]);
        this.cos[at] = this.magnitude * Math.fround(Math.cos(angle));
        this.sin[at] = this.magnitude * Math.fround(Math.sin(angle));
      }
    }
  }

  /** After `prepare`, rotate each pair (a, b) of the first elements of every head of x [rows, heads · K]: (a cos − b sin, a sin + b cos). */
  rotate(x, headWidth, positions) {
    const pairs = this.frequencies.length;
    const [step, second] = this.half ? [1, pairs] : [2, 1];
    const width = x.length / positions.length;
    positions.forEach((position, row) => {
      for (let head = row * width; head < (row + 1) * width; head += headWidth) {
        for (let d = 0, angle = position * pairs; d < pairs; d++, angle++) {
          const at = head + d * step;
          const a = x[at];
          const b = x[at + second];
          x[at] = a * this.cos[angle] - b * this.sin[angle];
          x[at + second] = a * this.sin[angle] + b * this.cos[angle];
        }
      }
    });
  }
}

/** The numbers that are added to scores by distance, or null. */
export function makeDistanceBias(model, stack) {
  const { config, container } = model;
  const { heads, position } = config;
  if (position === "alibi") return new DistanceBias(heads, (distance, head) => -config.alibi_slopes[head] * Math.abs(distance));
  if (position !== "relative_bias") return null;
  const table = container.tensor(`${stack}.relative_bias.table`, [config.relative_buckets, heads]).data;
  const starts = config.bucket_starts[stack];
  const bucketOf = (distance) => starts.findLast(([first]) => first <= distance)[1];
  const later = Math.floor(config.relative_buckets / 2); // the first bucket of keys after the query
  const bucket = (distance) => (stack === "decoder" ? bucketOf(Math.max(distance, 0)) : bucketOf(Math.abs(distance)) + (distance < 0 ? later : 0));
  return new DistanceBias(heads, (distance, head) => table[bucket(distance) * heads + head]);
}

/** A table [H, span] of a number for each head and distance i − j, which is at i − j − low. */
class DistanceBias {
  constructor(heads, compute) {
    this.heads = heads;
    this.compute = compute;
    this.length = 0;
    this.prepare(64);
  }

  /** Compute the numbers of distances between positions 0 … length − 1, unless they are there. */
  prepare(length) {
    if (length <= this.length) return;
    this.length = Math.max(length, 2 * this.length);
    this.low = 1 - this.length;
    this.span = 2 * this.length - 1;
    this.values = new Float32Array(this.heads * this.span);
    for (let at = 0; at < this.span; at++) {
      for (let head = 0; head < this.heads; head++) this.values[head * this.span + at] = this.compute(this.low + at, head);
    }
  }
}
