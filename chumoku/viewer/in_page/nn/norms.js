// Normalization layers, as in chumoku/nn/norms.py:
//
//   LayerNorm   γ (x − μ) / √(σ² + ε) + β     μ, σ² over the features of one token; without bias, β = 0
//   RMSNorm     γ x / √(mean(x²) + ε)          with unit_offset, 1 + γ instead of γ
//   BatchNorm   γ (x − μ) / √(σ² + ε) + β     μ, σ² of each feature are the averages of training

/** The norm at `path`, as the config says: [rows, width] → [rows, width]. */
export function makeNorm(model, path) {
  const { config, container } = model;
  const tensor = (name) => container.tensor(`${path}.${name}`, [config.width]).data;
  const epsilon = config.norm_epsilon;
  if (config.norm === "rms") return makeRmsNorm(model, path, config.width);
  if (config.norm === "batch") {
    const [gamma, beta, mean, variance] = ["gamma", "beta", "mean", "variance"].map(tensor);
    return (x) => batchNorm(x, gamma, beta, mean, variance, epsilon);
  }
  const [gamma, beta] = [tensor("gamma"), config.norm_bias ? tensor("beta") : new Float32Array(config.width)];
  return (x) => layerNorm(x, gamma, beta, epsilon);
}

export function makeRmsNorm(model, path, width) {
  const { norm_unit_offset: unitOffset, norm_epsilon: epsilon } = model.config;
  const gamma = model.container.tensor(`${path}.gamma`, [width]).data;
  const factor = unitOffset ? gamma.map((value) => 1 + value) : gamma;
  return (x) => rmsNorm(x, factor, epsilon);
}

export function layerNorm(x, gamma, beta, epsilon) {
  const width = gamma.length;
  const y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += width) {
    let mean = 0;
    for (let d = 0; d < width; d++) mean += x[at + d];
    mean /= width;
    let variance = 0;
    for (let d = 0; d < width; d++) variance += (x[at + d] - mean) ** 2;
    const factor = 1 / Math.sqrt(variance / width + epsilon);
    for (let d = 0; d < width; d++) y[at + d] = gamma[d] * (x[at + d] - mean) * factor + beta[d];
  }
  return y;
}

export function rmsNorm(x, gamma, epsilon) {
  const width = gamma.length;
  const y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += width) {
    let squares = 0;
    for (let d = 0; d < width; d++) squares += x[at + d] ** 2;
    const factor = 1 / Math.sqrt(squares / width + epsilon);
    for (let d = 0; d < width; d++) y[at + d] = gamma[d] * x[at + d] * factor;
  }
  return y;
}

function batchNorm(x, gamma, beta, mean, variance, epsilon) {
  const width = gamma.length;
  const y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += width) {
    for (let d = 0; d < width; d++) y[at + d] = (gamma[d] * (x[at + d] - mean[d])) / Math.sqrt(variance[d] + epsilon) + beta[d];
  }
  return y;
}
