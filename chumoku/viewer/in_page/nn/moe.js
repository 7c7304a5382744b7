// Mixture of experts, as in chumoku/nn/moe.py:
//
//   MoE(x) = Σᵢ gᵢ(x) · FFNᵢ(x)        g = softmax(x W_router); only the k largest, scaled to sum to 1 if `normalize`
//            + sigmoid(x w) · FFN(x)   with a shared expert, which every token uses
import { ACTIVATIONS, activate, sigmoid } from "./activations.js";
import { FeedForward, multiplyElements } from "./feedforward.js";
import { Linear } from "./linear.js";
import { multiplyFloats } from "./products.js";
import { softmaxRow } from "./softmax.js";

export class MixtureOfExperts {
  constructor(model, path) {
    const { config, container } = model;
    this.path = path;
    this.width = config.width;
    this.hidden = config.hidden;
    this.experts = config.experts;
    this.perToken = config.experts_per_token;
    this.normalize = config.normalize_experts;
    this.activation = ACTIVATIONS[config.feedforward];
    this.router = new Linear(model, `${path}.router`, config.width, config.experts);
    const tensor = (name, ...shape) => container.tensor(`${path}.experts.${name}`, [config.experts, ...shape]).data;
    const bias = (name, size) => container.optional(`${path}.experts.${name}`, [config.experts, size])?.data ?? null;
    const layer = (name, outputs, inputs) => ({ weight: tensor(name, outputs, inputs), bias: bias(`${name}_bias`, outputs), outputs, inputs });
    this.up = layer("up", config.hidden, config.width);
    this.gate = this.activation.gated ? layer("gate", config.hidden, config.width) : null;
    this.down = layer("down", config.width, config.hidden);
    const shared = config.shared_expert_width !== null;
    this.shared = shared ? new FeedForward(model, `${path}.shared`, config.shared_expert_width) : null;
    this.sharedRouter = shared ? new Linear(model, `${path}.shared_router`, config.width, 1) : null;
  }

  addresses() {
    const own = ["router", "chosen", "pre_activation", "hidden", "output"].map((name) => `${this.path}.${name}`);
    return [...own, ...(this.shared?.addresses() ?? [])];
  }

  apply(x, tape) {
    const rows = x.length / this.width;
    const k = this.perToken;
    const { probabilities, weights, chosen } = this.route(x);
    const before = new Float32Array(rows * k * this.hidden);
    const hidden = new Float32Array(rows * k * this.hidden);
    const output = new Float32Array(x.length);
    for (let row = 0; row < rows; row++) {
      for (let place = row * k; place < (row + 1) * k; place++) {
        const parts = this.computeExpert(chosen[place], x.subarray(row * this.width, (row + 1) * this.width));
        before.set(parts.before, place * this.hidden);
        hidden.set(parts.hidden, place * this.hidden);
        for (let d = 0; d < this.width; d++) output[row * this.width + d] += weights[place] * parts.output[d];
      }
    }
    if (this.shared !== null) this.addShared(output, x, tape);
    tape.tap(`${this.path}.router`, { shape: [rows, this.experts], data: probabilities });
    tape.tap(`${this.path}.chosen`, { shape: [rows, k], data: chosen });
    tape.tap(`${this.path}.pre_activation`, { shape: [rows, k, this.hidden], data: before });
    tape.tap(`${this.path}.hidden`, { shape: [rows, k, this.hidden], data: hidden });
    return tape.tapRows(`${this.path}.output`, output, this.width);
  }

  /** The probability of each expert, and the weights and numbers of the chosen ones [rows, k], the likeliest first. */
  route(x) {
    const probabilities = this.router.apply(x);
    const rows = probabilities.length / this.experts;
    const weights = new Float32Array(rows * this.perToken);
    const chosen = new Float32Array(rows * this.perToken);
    for (let row = 0; row < rows; row++) {
      const one = probabilities.subarray(row * this.experts, (row + 1) * this.experts);
      softmaxRow(one, 0, this.experts);
      const best = [...one.keys()].sort((a, b) => one[b] - one[a]).slice(0, this.perToken);
      const total = this.normalize ? best.reduce((sum, expert) => sum + one[expert], 0) : 1;
      best.forEach((expert, place) => {
        chosen[row * this.perToken + place] = expert;
        weights[row * this.perToken + place] = one[expert] / total;
      });
    }
    return { probabilities, weights, chosen };
  }

  /** FFNᵢ of one token: the inputs of the activation, the hidden units and the output. */
  computeExpert(expert, x) {
    const up = applyExpert(this.up, expert, x);
    const before = this.gate === null ? up : applyExpert(this.gate, expert, x);
    const hidden = activate(before, this.activation.f);
    if (this.gate !== null) multiplyElements(hidden, up);
    return { before, hidden, output: applyExpert(this.down, expert, hidden) };
  }

  addShared(output, x, tape) {
    const gates = this.sharedRouter.apply(x);
    const shared = this.shared.apply(x, tape);
    for (let i = 0; i < output.length; i++) output[i] += sigmoid(gates[Math.floor(i / this.width)]) * shared[i];
  }
}

function applyExpert({ weight, bias, outputs, inputs }, expert, x) {
  const size = outputs * inputs;
  const y = multiplyFloats(weight.subarray(expert * size, (expert + 1) * size), outputs, inputs, x, 1);
  if (bias !== null) for (let n = 0; n < outputs; n++) y[n] += bias[expert * outputs + n];
  return y;
}
