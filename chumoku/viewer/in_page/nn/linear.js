// Linear layers: y = x Wᵀ + b, with float32 or int8 W.

/** model: its `multiply` computes products and its `container` has the tensors. */
export class Linear {
  constructor(model, path, inputs, outputs) {
    this.model = model;
    this.name = `${path}.weight`;
    this.outputs = outputs;
    this.inputs = inputs;
    model.container.tensor(this.name, [outputs, inputs]);
    this.bias = model.container.optional(`${path}.bias`, [outputs]);
  }

  /** [rows, inputs] → [rows, outputs]. */
  apply(x) {
    return addBias(this.model.multiply(this.name, x, x.length / this.inputs), this.bias);
  }
}

/** y [rows, N] + b, in place. */
export function addBias(y, bias) {
  if (bias === null) return y;
  const { data } = bias;
  const width = data.length;
  for (let at = 0; at < y.length; at += width) for (let n = 0; n < width; n++) y[at + n] += data[n];
  return y;
}
