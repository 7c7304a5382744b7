// Feed-forward: two or three linear layers applied to each position separately.
//
//   plain   f(x W_up + b) W_down + b
//   gated   (f(x W_gate + b) ⊙ (x W_up + b)) W_down + b
import { ACTIVATIONS, activate } from "./activations.js";
import { Linear } from "./linear.js";

export class FeedForward {
  constructor(model, path, hidden) {
    const { width, feedforward } = model.config;
    const { f, gated } = ACTIVATIONS[feedforward];
    this.path = path;
    this.f = f;
    this.up = new Linear(model, `${path}.up`, width, hidden);
    this.gate = gated ? new Linear(model, `${path}.gate`, width, hidden) : null;
    this.down = new Linear(model, `${path}.down`, hidden, width);
  }

  addresses() {
    return ["pre_activation", "hidden", "output"].map((name) => `${this.path}.${name}`);
  }

  apply(x, tape) {
    const width = this.up.outputs;
    const before = tape.tapRows(`${this.path}.pre_activation`, (this.gate ?? this.up).apply(x), width);
    let hidden = activate(before, this.f);
    if (this.gate !== null) hidden = multiplyElements(hidden, this.up.apply(x));
    hidden = tape.tapRows(`${this.path}.hidden`, hidden, width);
    return tape.tapRows(`${this.path}.output`, this.down.apply(hidden), this.down.outputs);
  }
}

/** x ⊙ y, in place. */
export function multiplyElements(x, y) {
  for (let i = 0; i < x.length; i++) x[i] *= y[i];
  return x;
}
