/** Softmax of x[low … high − 1], in place: e^{x − max} / Σ e^{x − max}. */
export function softmaxRow(x, low, high) {
  let top = -Infinity;
  for (let i = low; i < high; i++) if (x[i] > top) top = x[i];
  let sum = 0;
  for (let i = low; i < high; i++) sum += x[i] = Math.exp(x[i] - top);
  for (let i = low; i < high; i++) x[i] /= sum;
}
