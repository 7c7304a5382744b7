// Activation functions of feed-forwards and heads, as in chumoku/nn/feedforward.py.
//
//   gelu        x · Φ(x),  Φ(x) = (1 + erf(x / √2)) / 2
//   gelu_tanh   x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))
//   silu        x / (1 + e^−x)

const gelu = (x) => (x / 2) * (1 + erf(x * Math.SQRT1_2));
const geluTanh = (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const silu = (x) => x / (1 + Math.exp(-x));
const relu = (x) => (x < 0 ? 0 : x);

/** kind → { f, gated } */
export const ACTIVATIONS = {
  relu: { f: relu, gated: false },
  gelu: { f: gelu, gated: false },
  gelu_tanh: { f: geluTanh, gated: false },
  silu: { f: silu, gated: false },
  geglu: { f: gelu, gated: true },
  geglu_tanh: { f: geluTanh, gated: true },
  swiglu: { f: silu, gated: true },
  tanh: { f: Math.tanh, gated: false },
};

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** f of every number. */
export function activate(x, f) {
  const y = new Float32Array(x.length);
  for (let i = 0; i < x.length; i++) y[i] = f(x[i]);
  return y;
}

/** c · tanh(x / c) of every number, in place; null leaves them as they are. */
export function softCap(x, cap) {
  if (cap !== null) for (let i = 0; i < x.length; i++) x[i] = cap * Math.tanh(x[i] / cap);
  return x;
}

/** erf(x) = 2/√π e^{−x²} Σ_n 2^n x^{2n+1} / (1 · 3 ⋯ (2n+1)), whose terms are all of one sign. */
export function erf(x) {
  if (Number.isNaN(x)) return NaN;
  if (Math.abs(x) > 5) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-9 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return ((2 * sum) / Math.sqrt(Math.PI)) * Math.exp(-x * x);
}
