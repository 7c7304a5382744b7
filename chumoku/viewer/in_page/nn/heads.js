// Output heads: hidden vectors [T, D] → logits or one vector per text, as in chumoku/models/heads.py.
//
//   next token     logits = h Eᵀ
//   masked token   logits = norm(f(h W + b)) Eᵀ + b
//   vector         mean over all tokens, or the first or last token; optionally scaled to length 1
//   classes        logits = norm(f(v W₁ + b₁)) W + b, v the vector of the text
//   tags           the same of every token's h instead of v
import { ACTIVATIONS, activate } from "./activations.js";
import { Logits } from "./embeddings.js";
import { Linear } from "./linear.js";
import { makeNorm } from "./norms.js";

/** The head of a model: h [T, D] → logits { shape, data }; null for an encoder that gives vectors only. */
export function makeHead(model, table) {
  const { head_kind: kind, vocabulary } = model.config;
  if (kind === "vector") return null;
  if (kind === "classes" || kind === "tags") return makeLabelHead(model);
  const head = kind === "masked" ? makeMaskedHead(model, table) : new Logits(model, "head", table);
  return (hidden) => {
    const data = head.apply(hidden);
    return { shape: [data.length / vocabulary, vocabulary], data };
  };
}

function makeMaskedHead(model, table) {
  const { width, feedforward } = model.config;
  const transform = new Linear(model, "head.transform", width, width);
  const norm = makeNorm(model, "head.norm");
  const logits = new Logits(model, "head.logits", table);
  return { apply: (hidden) => logits.apply(norm(activate(transform.apply(hidden), ACTIVATIONS[feedforward].f))) };
}

function makeLabelHead(model) {
  const { config } = model;
  const { width, classifier_activation: activation, labels } = config;
  const transform = activation === null ? null : new Linear(model, "head.transform", width, width);
  const norm = config.classifier_norm ? makeNorm(model, "head.norm") : null;
  const output = new Linear(model, "head.output", width, labels.length);
  const classes = config.head_kind === "classes";
  return (hidden) => {
    if (classes) hidden = pool(hidden, width, config.pooling, false);
    if (transform !== null) hidden = activate(transform.apply(hidden), ACTIVATIONS[activation].f);
    if (norm !== null) hidden = norm(hidden);
    const data = output.apply(hidden);
    return { shape: classes ? [labels.length] : [data.length / labels.length, labels.length], data };
  };
}

/** One vector [D] of h [T, D]; kind: "mean", "first" or "last". */
export function pool(hidden, width, kind, normalize) {
  const rows = hidden.length / width;
  const vector = kind === "first" ? hidden.slice(0, width) : kind === "last" ? hidden.slice(-width) : new Float32Array(width);
  if (kind === "mean") {
    for (let d = 0; d < width; d++) {
      let sum = 0;
      for (let row = 0; row < rows; row++) sum += hidden[row * width + d];
      vector[d] = sum / rows;
    }
  }
  if (normalize) {
    const length = Math.max(Math.hypot(...vector), 1e-12);
    for (let d = 0; d < width; d++) vector[d] /= length;
  }
  return vector;
}
