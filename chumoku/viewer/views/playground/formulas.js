// The formulas of the view Positions & softmax, as in nn/positions.py and nn/attention.py.
//
//   sinusoidal   PE(i, 2d) = sin(i / base^{2d/D}),  PE(i, 2d+1) = cos(i / base^{2d/D})
//   rotary       the angle of plane d at position i:  i / base^{2d/D}
//   learned      before training: normally distributed numbers
//   relative     the same, one row per distance; q · r_{i−j} / √D is added to the score of i and j, with i − j clipped
//   alibi        −m_h |i−j| is added to the score of i and j in head h;  m_h = 2^{−8(h+1)/H} for H heads
//   none         zeros
//   softmax      p_j = exp(s_j / τ) / Σ exp(s_k / τ)

/** → { values, rows, columns }: one row per position; for relative positions and ALiBi one per distance, −clip … clip and 0 … length − 1. */
export const KINDS = {
  sinusoidal: ({ length, width, base }) => table(length, width, (i, d) => wave(d % 2)(i / base ** ((d - (d % 2)) / width))),
  rotary: ({ length, width, base }) => table(length, width / 2, (i, d) => Math.cos(i / base ** ((2 * d) / width))),
  learned: ({ length, width }) => table(length, width, normal(7)),
  relative: ({ width, clip }) => table(2 * clip + 1, width, normal(7)),
  alibi: ({ length, heads }) => {
    const slope = slopes(heads);
    return table(length, heads, (distance, head) => -slope[head] * distance);
  },
  none: ({ length, width }) => table(length, width, () => 0),
};

/** The slopes m_h of ALiBi; if the number of heads is no power of 2, those of the next lower one, then every second one of the next higher. */
function slopes(heads) {
  const lower = 2 ** Math.floor(Math.log2(heads));
  return Array.from({ length: heads }, (_, h) => 2 ** ((-8 * (h < lower ? h + 1 : h - lower + 0.5)) / lower));
}

const wave = (odd) => (odd ? Math.cos : Math.sin);

function table(rows, columns, number) {
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) values[row * columns + column] = number(row, column);
  return { values, rows, columns };
}

/** A random query, for relative positions. */
export const query = (width) => Array.from({ length: width }, normal(5));

/** PEᵢ · PEⱼ for all pairs; for rotary Σ cos((i − j) θ_d), the product of a query and a key of ones, rotated to i and j.
 *  For relative positions and ALiBi, the number added to the score of i and j; for ALiBi in the head `column`. */
export function products(kind, sizes) {
  const { length, width, base } = sizes;
  if (kind === "alibi") {
    const slope = slopes(sizes.heads)[sizes.column];
    return table(length, length, (i, j) => -slope * Math.abs(i - j));
  }
  if (kind === "rotary") {
    const angles = Array.from({ length: width / 2 }, (_, d) => base ** ((-2 * d) / width));
    const by = Float64Array.from({ length }, (_, gap) => angles.reduce((sum, angle) => sum + Math.cos(gap * angle), 0) / angles.length);
    return table(length, length, (i, j) => by[Math.abs(i - j)]);
  }
  const { values } = KINDS[kind](sizes);
  const dot = (other, at) => other.reduce((sum, one, d) => sum + one * values[at * width + d], 0);
  if (kind === "relative") return normalize(biases(sizes, (at) => dot(query(width), at)));
  const rows = Array.from({ length }, (_, i) => values.subarray(i * width, (i + 1) * width));
  return normalize(table(length, length, (i, j) => dot(rows[i], j)));
}

/** The bias of each distance i − j; larger distances than the clip have the same bias. */
function biases({ length, clip }, bias) {
  const by = Array.from({ length: 2 * clip + 1 }, (_, at) => bias(at));
  return table(length, length, (i, j) => by[Math.max(-clip, Math.min(clip, i - j)) + clip]);
}

/** Scale the table so that its largest |value| is 1. */
function normalize(raw) {
  const most = raw.values.reduce((best, one) => Math.max(best, Math.abs(one)), 1e-9);
  raw.values.forEach((one, at) => (raw.values[at] = one / most));
  return raw;
}

/** Softmax; the largest score is subtracted first, so that nothing overflows. */
export function softmax(scores, temperature = 1) {
  const most = Math.max(...scores);
  const parts = scores.map((one) => Math.exp((one - most) / temperature));
  const sum = parts.reduce((all, one) => all + one, 0);
  return parts.map((one) => one / sum);
}

/** −Σ p log₂ p */
export const entropy = (shares) => shares.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0);

/** How much the weights change with the scores: Σⱼ pⱼ (1 − pⱼ), 0 if softmax is saturated. */
export const slope = (shares) => shares.reduce((sum, p) => sum + p * (1 - p), 0);

/** q · k of a random query and `count` random keys, all normally distributed: the standard deviation is √width. */
export function randomScores(width, count, seed = 11) {
  const random = normal(seed);
  const query = Array.from({ length: width }, random);
  return Array.from({ length: count }, () => query.reduce((sum, one) => sum + one * random(), 0));
}

/** A generator of normally distributed numbers, reproducible by its seed. */
export function normal(seed) {
  let state = seed >>> 0;
  const even = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(even())) * Math.cos(2 * Math.PI * even());
}
