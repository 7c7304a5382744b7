// Matrix products: x [rows, K] and W [N, K] → x Wᵀ [rows, N]; chumoku/nn/quantized.py has the formulas of int8.
//
//   float32   Σ_i w_i x_i
//   int8      w = s q,  x ≈ t p   with p = round(x · 32512 / max|x|), t = max|x| / 32512, one t and one s per 32 inputs
//             Σ_groups s t Σ_i q_i p_i   where the inner sums are exact integers below 2³⁰
//
// Four rows and two outputs at a time (or one row and four outputs) share what is read, which is two to three times as
// fast as one by one. The inputs of four rows are stored side by side, [K, 4]; rows that are missing are zeros.
import { GROUP } from "../container.js";

const LEVELS = 32512;
const TINY = 1e-30; // a group whose largest input is not above this counts as zeros
const TO_EVEN = 1.5 * 2 ** 52; // adding and subtracting it rounds to the nearest integer, halves to even

/** weight: a tensor of the container. */
export function multiply(weight, x, rows) {
  return weight.kind === "int8" ? multiplyInt8(weight, x, rows) : multiplyFloats(weight.data, weight.shape[0], weight.shape[1], x, rows);
}

export function multiplyFloats(weight, outputs, inputs, x, rows) {
  const y = new Float32Array(rows * outputs);
  for (let row = 0; row < rows; row += 4) {
    const count = Math.min(4, rows - row);
    const part = y.subarray(row * outputs, (row + count) * outputs);
    const given = x.subarray(row * inputs, (row + count) * inputs);
    if (count === 1) multiplyRowOfFloats(part, outputs, inputs, weight, given);
    else multiplyFourRowsOfFloats(part, outputs, inputs, weight, interleave(given, inputs, count), count);
  }
  return y;
}

function interleave(x, inputs, rows) {
  const together = new Float32Array(4 * inputs);
  for (let row = 0; row < rows; row++) for (let k = 0; k < inputs; k++) together[4 * k + row] = x[row * inputs + k];
  return together;
}

/** One row: four outputs at a time, and the last ones alone. */
function multiplyRowOfFloats(y, outputs, inputs, weight, x) {
  let n = 0;
  for (; n + 4 <= outputs; n += 4) {
    const w0 = n * inputs, w1 = w0 + inputs, w2 = w1 + inputs, w3 = w2 + inputs;
    let a = 0, b = 0, c = 0, d = 0;
    for (let k = 0; k < inputs; k++) {
      const one = x[k];
      a += weight[w0 + k] * one, b += weight[w1 + k] * one, c += weight[w2 + k] * one, d += weight[w3 + k] * one;
    }
    y[n] = a, y[n + 1] = b, y[n + 2] = c, y[n + 3] = d;
  }
  for (; n < outputs; n++) {
    let sum = 0;
    for (let k = 0; k < inputs; k++) sum += weight[n * inputs + k] * x[k];
    y[n] = sum;
  }
}

function multiplyFourRowsOfFloats(y, outputs, inputs, weight, x, count) {
  for (let n = 0; n < outputs; n += 2) {
    const w = n * inputs, next = n + 1 < outputs ? inputs : 0;
    let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
    for (let k = 0, i = 0; k < inputs; k++, i += 4) {
      const x0 = x[i], x1 = x[i + 1], x2 = x[i + 2], x3 = x[i + 3];
      const u = weight[w + k], v = weight[w + next + k];
      a0 += u * x0, a1 += u * x1, a2 += u * x2, a3 += u * x3;
      b0 += v * x0, b1 += v * x1, b2 += v * x2, b3 += v * x3;
    }
    store(y, n, outputs, count, a0, a1, a2, a3);
    if (next) store(y, n + 1, outputs, count, b0, b1, b2, b3);
  }
}

function store(y, n, outputs, count, a, b, c, d) {
  y[n] = a;
  if (count > 1) y[outputs + n] = b;
  if (count > 2) y[2 * outputs + n] = c;
  if (count > 3) y[3 * outputs + n] = d;
}

export function multiplyInt8(weight, x, rows) {
  const [outputs, inputs] = weight.shape;
  const y = new Float32Array(rows * outputs);
  for (let row = 0; row < rows; row += 4) {
    const count = Math.min(4, rows - row);
    const part = y.subarray(row * outputs, (row + count) * outputs);
    const given = x.subarray(row * inputs, (row + count) * inputs);
    if (count === 1) multiplyRow(part, weight, roundInputs(given, inputs, weight.groups, 1, 1));
    else multiplyFourRows(part, weight, roundInputs(given, inputs, weight.groups, count, 4), count);
  }
  return y;
}

/** One row: four outputs at a time, and the last ones alone. */
function multiplyRow(y, { shape: [outputs], groups, q, scale }, { p, t }) {
  const width = groups * GROUP;
  let n = 0;
  for (; n + 4 <= outputs; n += 4) {
    const w0 = n * width, w1 = w0 + width, w2 = w1 + width, w3 = w2 + width, s = n * groups;
    let a = 0, b = 0, c = 0, d = 0;
    for (let g = 0; g < groups; g++) {
      let e = 0, f = 0, h = 0, i = 0;
      for (let k = g * GROUP, end = k + GROUP; k < end; k++) {
        const one = p[k];
        e = (e + q[w0 + k] * one) | 0, f = (f + q[w1 + k] * one) | 0;
        h = (h + q[w2 + k] * one) | 0, i = (i + q[w3 + k] * one) | 0;
      }
      a += e * scale[s + g] * t[g], b += f * scale[s + groups + g] * t[g];
      c += h * scale[s + 2 * groups + g] * t[g], d += i * scale[s + 3 * groups + g] * t[g];
    }
    y[n] = a, y[n + 1] = b, y[n + 2] = c, y[n + 3] = d;
  }
  for (; n < outputs; n++) {
    let sum = 0;
    for (let g = 0; g < groups; g++) {
      let exact = 0;
      for (let k = g * GROUP, end = k + GROUP; k < end; k++) exact = (exact + q[n * width + k] * p[k]) | 0;
      sum += exact * scale[n * groups + g] * t[g];
    }
    y[n] = sum;
  }
}

function multiplyFourRows(y, { shape: [outputs], groups, q, scale }, { p, t }, count) {
  const width = groups * GROUP;
  for (let n = 0; n < outputs; n += 2) {
    const w = n * width, s = n * groups, next = n + 1 < outputs ? 1 : 0, v = w + next * width;
    let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
    for (let g = 0; g < groups; g++) {
      let e0 = 0, e1 = 0, e2 = 0, e3 = 0, f0 = 0, f1 = 0, f2 = 0, f3 = 0;
      for (let k = g * GROUP, end = k + GROUP; k < end; k++) {
        const i = k << 2;
        const p0 = p[i], p1 = p[i + 1], p2 = p[i + 2], p3 = p[i + 3];
        const one = q[w + k], two = q[v + k];
        e0 = (e0 + one * p0) | 0, e1 = (e1 + one * p1) | 0, e2 = (e2 + one * p2) | 0, e3 = (e3 + one * p3) | 0;
        f0 = (f0 + two * p0) | 0, f1 = (f1 + two * p1) | 0, f2 = (f2 + two * p2) | 0, f3 = (f3 + two * p3) | 0;
      }
      const t0 = t[4 * g], t1 = t[4 * g + 1], t2 = t[4 * g + 2], t3 = t[4 * g + 3];
      const c = scale[s + g], d = scale[s + next * groups + g];
      a0 += e0 * c * t0, a1 += e1 * c * t1, a2 += e2 * c * t2, a3 += e3 * c * t3;
      b0 += f0 * d * t0, b1 += f1 * d * t1, b2 += f2 * d * t2, b3 += f3 * d * t3;
    }
    store(y, n, outputs, count, a0, a1, a2, a3);
    if (next) store(y, n + 1, outputs, count, b0, b1, b2, b3);
  }
}

/** x [rows, K] → integers p [groups · 32, step] and t [groups, step]. Divisions and products are float32, as in Python. */
function roundInputs(x, inputs, groups, rows, step) {
  const p = new Int16Array(groups * GROUP * step);
  const t = new Float32Array(groups * step);
  for (let row = 0; row < rows; row++) {
    for (let g = 0; g < groups; g++) {
      const first = row * inputs + g * GROUP;
      const count = Math.min(GROUP, inputs - g * GROUP);
      let top = 0;
      for (let i = 0; i < count; i++) top = Math.max(top, Math.abs(x[first + i]));
      if (top <= TINY) continue;
      const factor = Math.fround(LEVELS / top);
      t[g * step + row] = top / LEVELS;
      for (let i = 0; i < count; i++) p[(g * GROUP + i) * step + row] = Math.fround(x[first + i] * factor) + TO_EVEN - TO_EVEN;
    }
  }
  return { p, t };
}
