// The Transformer block: attention, then feed-forward, each with a residual connection, as in chumoku/nn/block.py.
//
//   pre        x ← x + f(norm(x))
//   post       x ← norm(x + f(x))
//   output     x ← x + norm(f(x))
//   sandwich   x ← x + norm'(f(norm(x)))   for f = attention, cross-attention (decoders with an encoder), feed-forward
//
//   parallel   x ← x + attention(norm(x)) + feedforward(norm'(x))   with shared_norm, norm' = norm
import { Attention } from "./attention.js";
import { FeedForward } from "./feedforward.js";
import { MixtureOfExperts } from "./moe.js";
import { makeNorm } from "./norms.js";

export class Block {
  constructor(model, path, { layer, cross }) {
    const { config } = model;
    Object.assign(this, { path, layer, width: config.width, placement: config.placement, parallel: config.parallel });
    this.attention = new Attention(model, `${path}.attention`, { relative: config.position === "relative" });
    this.crossAttention = cross ? new Attention(model, `${path}.cross_attention`) : null;
    const inner = `${path}.feedforward`;
    this.feedforward = config.experts ? new MixtureOfExperts(model, inner) : new FeedForward(model, inner, config.hidden);
    this.names = ["attention", ...(cross ? ["cross_attention"] : []), "feedforward"];
    this.norms = new Map();
    for (const name of this.names) {
      // Without first_norm, the first block's input is normalized already.
      const normalized = name === "attention" && layer === 0 && !config.first_norm;
      if (name !== "feedforward" || !config.shared_norm) {
        this.norms.set(`${name}_norm`, normalized ? (x) => x : makeNorm(model, `${path}.${name}_norm`));
      }
      if (config.placement === "sandwich") this.norms.set(`${name}_output_norm`, makeNorm(model, `${path}.${name}_output_norm`));
    }
  }

  addresses() {
    const own = this.names.flatMap((name) => {
      const norms = [`${name}_norm`, `${name}_output_norm`].filter((norm) => this.norms.has(norm));
      return [...norms, name === "feedforward" ? "output" : `after_${name}`];
    });
    const parts = [this.attention, this.crossAttention, this.feedforward].flatMap((part) => part?.addresses() ?? []);
    return [...own.map((name) => `${this.path}.${name}`), ...parts];
  }

  /** batch: { sequences, positions, tape, context, crossContext } */
  apply(x, batch) {
    const { tape, context, crossContext } = batch;
    const tap = (name, y) => tape.tapRows(`${this.path}.${name}`, y, this.width);
    let start = x;
    x = this.residual(x, x, "attention", tap, (y) => this.attention.apply(y, batch, context, this.layer));
    x = tap("after_attention", x);
    if (this.crossAttention !== null) {
      x = this.residual(x, x, "cross_attention", tap, (y) => this.crossAttention.applyCross(y, batch, crossContext, this.layer));
      x = tap("after_cross_attention", x);
    }
    if (!this.parallel) start = x;
    x = this.residual(x, start, "feedforward", tap, (y) => this.feedforward.apply(y, tape));
    return tap("output", x);
  }

  /** x after adding what the sublayer computes from `start`, which is x unless sublayers are parallel. */
  residual(x, start, name, tap, sublayer) {
    const norm = (part, y) => {
      const own = this.norms.get(`${name}_${part}`);
      return own === undefined ? this.norms.get("attention_norm")(y) : tap(`${name}_${part}`, own(y));
    };
    switch (this.placement) {
      case "pre":
        return add(x, sublayer(norm("norm", start)));
      case "post":
        return norm("norm", add(x, sublayer(start)));
      case "output":
        return add(x, norm("norm", sublayer(start)));
      default:
        return add(x, norm("output_norm", sublayer(norm("norm", start))));
    }
  }
}

export function add(x, y) {
  const sum = new Float32Array(x.length);
  for (let i = 0; i < x.length; i++) sum[i] = x[i] + y[i];
  return sum;
}
