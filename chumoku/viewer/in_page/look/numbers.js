// Arithmetic of the looks, in double precision, and numbers as the server writes them in JSON.
//
//   softmax     pᵢ = exp(xᵢ − max x) / Σⱼ exp(xⱼ − max x)
//   entropy     −Σᵢ pᵢ log₂ pᵢ                                     in bits

/** A number with this many significant digits, or "NaN", "Infinity", "-Infinity", which JSON has no numbers for. */
export function jsonNumber(value, digits = 6) {
  if (Number.isFinite(value)) return Number(value.toPrecision(digits));
  return Number.isNaN(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

export const jsonNumbers = (values, digits = 6) => Array.from(values, (value) => jsonNumber(value, digits));

/** Row `at` of a tensor [N, …], as a view. */
export function row({ shape, data }, at) {
  const width = data.length / shape[0];
  return data.subarray(at * width, (at + 1) * width);
}

export const rows = (tensor) => Array.from({ length: tensor.shape[0] }, (_, at) => row(tensor, at));

/** Row `at` of a tensor [N, …] as a tensor with one axis less. */
export const slice = (tensor, at) => ({ shape: tensor.shape.slice(1), data: row(tensor, at) });

// Plain loops over indices: rows of logits have as many numbers as the vocabulary, and iterators take ten times as long.

/** The largest value; NaN if there is one. */
function largest(values) {
  let best = -Infinity;
  for (let at = 0; at < values.length; at++) if (values[at] > best || Number.isNaN(values[at])) best = values[at];
  return best;
}

export function softmax(values) {
  const best = largest(values);
  const shares = new Float64Array(values.length);
  let total = 0;
  for (let at = 0; at < values.length; at++) total += shares[at] = Math.exp(values[at] - best);
  for (let at = 0; at < values.length; at++) shares[at] /= total;
  return shares;
}

/** log Σ exp(x); −∞ without values. */
export function logSumExp(values) {
  const best = largest(values);
  if (!Number.isFinite(best)) return best;
  let total = 0;
  for (let at = 0; at < values.length; at++) total += Math.exp(values[at] - best);
  return best + Math.log(total);
}

export function entropy(shares) {
  let bits = 0;
  for (let at = 0; at < shares.length; at++) if (shares[at] !== 0) bits -= shares[at] * Math.log2(shares[at]);
  return bits;
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

export const norm = (vector) => Math.sqrt(dot(vector, vector));

/** Where the `count` largest values are, largest first. NaN counts as largest; of equal values the first comes first. */
export function topIndices(values, count) {
  const precedes = (a, b) => (Number.isNaN(a) ? !Number.isNaN(b) : a > b);
  const best = [];
  for (let at = 0; at < values.length; at++) {
    let place = best.length;
    while (place > 0 && precedes(values[at], values[best[place - 1]])) place--;
    if (place === count) continue;
    best.splice(place, 0, at);
    if (best.length > count) best.pop();
  }
  return best;
}

/** Minimum, median and maximum. */
export function quantiles(values) {
  if (values.some(Number.isNaN)) return [NaN, NaN, NaN];
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return [sorted[0], (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2, sorted.at(-1)];
}

const PIECE = 1 << 13; // bytes that become one string at a time

export function base64(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += PIECE) binary += String.fromCharCode.apply(null, bytes.subarray(at, at + PIECE));
  return btoa(binary);
}
