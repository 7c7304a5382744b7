// A stack: embedding and position, then L blocks, then (with pre-norm) a final norm, as in chumoku/models/stack.py.
//
//   x₀ = E[token] (· √D) + position,   x_{l+1} = block_l(x_l),   h = norm(x_L)
//
//   sequence   { tokens, segments, past, cache, memory }
//              past     the position of its first token: how many tokens its cache has
//              cache    keys and values of earlier tokens (session.js), or null
//              memory   keys and values of the encoder output for each layer, or null
//
// Several sequences are computed together: their tokens are rows of one matrix, and attention is within each of them.
import { Block, add } from "./block.js";
import { Embedding } from "./embeddings.js";
import { makeNorm } from "./norms.js";
import { RotaryPositions, makeDistanceBias, makePosition } from "./positions.js";

const CROSS = { causal: false, window: null, rotation: null, bias: null };

export class Stack {
  /** path: "encoder" or "decoder". */
  constructor(model, path, { depth, cross }) {
    const { config } = model;
    Object.assign(this, { path, config, width: config.width });
    const size = path === "encoder" ? config.source_tokens : config.vocabulary;
    this.embedding = new Embedding(model, `${path}.embedding`, size, { scale: config.scale_embedding });
    this.position = makePosition(model, `${path}.position`);
    this.segment = config.segments ? new Embedding(model, `${path}.segment`, config.segments) : null;
    this.embeddingNorm = config.embedding_norm ? makeNorm(model, `${path}.embedding_norm`) : null;
    this.blocks = Array.from({ length: depth }, (_, layer) => new Block(model, `${path}.blocks.${layer}`, { layer, cross }));
    this.norm = config.placement === "post" ? null : makeNorm(model, `${path}.norm`);
    const rotary = (frequencies, magnitude) => (frequencies === null ? null : new RotaryPositions(frequencies, magnitude, config.pairing));
    this.rotary = rotary(config.rotary_frequencies, config.rotary_magnitude);
    this.localRotary = rotary(config.local_rotary_frequencies, 1) ?? this.rotary;
    this.bias = makeDistanceBias(model, path);
  }

  addresses() {
    const own = ["token_embedding", ...(this.position ? ["position"] : []), "embedding", ...(this.norm ? ["norm"] : [])];
    return [...own.map((name) => `${this.path}.${name}`), ...this.blocks.flatMap((block) => block.addresses())];
  }

  /** Vectors [rows, D] of all tokens, one sequence after another. `check` is awaited before every block. */
  async apply(sequences, tape, check) {
    const batch = makeBatch(sequences, tape);
    let x = this.embed(batch);
    const end = Math.max(...batch.sequences.map(({ past, count }) => past + count));
    for (const table of [this.rotary, this.localRotary, this.bias]) table?.prepare(end);
    for (const [layer, block] of this.blocks.entries()) {
      if (check !== null) await check();
      x = block.apply(x, { ...batch, context: this.context(layer), crossContext: CROSS });
    }
    return this.norm === null ? x : this.tap(batch, "norm", this.norm(x));
  }

  embed(batch) {
    let x = this.tap(batch, "token_embedding", this.embedding.apply(batch.tokens));
    if (this.position !== null) x = add(x, this.tap(batch, "position", this.position(batch.positions)));
    if (this.segment !== null) x = add(x, this.segment.apply(batch.segments));
    if (this.embeddingNorm !== null) x = this.embeddingNorm(x);
    return this.tap(batch, "embedding", x);
  }

  /** What attention needs besides the vectors. */
  context(layer) {
    const { local_layers: local, rotated_layers: rotated, attention_window: window } = this.config;
    const rotary = local[layer] ? this.localRotary : this.rotary;
    return {
      causal: this.path === "decoder",
      window: local[layer] ? window : null,
      rotation: rotated[layer] ? rotary : null,
      bias: this.bias,
    };
  }

  tap({ tape }, name, x) {
    return tape.tapRows(`${this.path}.${name}`, x, this.width);
  }
}

function makeBatch(sequences, tape) {
  const batch = { tape, tokens: [], segments: [], positions: [], sequences: [] };
  for (const { tokens, segments = null, past = 0, cache = null, memory = null } of sequences) {
    batch.sequences.push({ start: batch.tokens.length, count: tokens.length, past, cache, memory });
    for (let t = 0; t < tokens.length; t++) {
      batch.tokens.push(tokens[t]);
      batch.segments.push(segments === null ? 0 : segments[t]);
      batch.positions.push(past + t);
    }
  }
  return batch;
}
