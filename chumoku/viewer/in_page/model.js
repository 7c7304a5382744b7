// A model in plain JavaScript: the twin of chumoku/models/model.py, for every choice of its config.
//
//   encoder           every token attends to all tokens           masked-token logits, or one vector per text
//   decoder           every token attends to itself and earlier   next-token logits
//   both              with head = "classes" or "tags"             logits of the classes of a text, or of the tags of tokens
//   encoder-decoder   a decoder that also attends to the output of an encoder
//
//   const model = new Model(container);
//   const { output, tape } = await model.forward({ tokens, record: (address) => address.endsWith(".weights") });
//   tape.get("decoder.blocks.0.attention.weights")    { shape: [H, T, S], data: Float32Array }
import { RequestError } from "./errors.js";
import { softCap } from "./nn/activations.js";
import { makeHead, pool } from "./nn/heads.js";
import { multiply } from "./nn/products.js";
import { Stack } from "./nn/stack.js";
import { NO_TAPE, Tape, checkEdits } from "./nn/tap.js";

export class Model {
  constructor(container) {
    const { config } = container;
    this.container = container;
    this.config = config;
    this.kind = config.kind;
    /** (name, x, rows) → x Wᵀ for the matrix W of this name: x [rows, K] → [rows, N]. It can be replaced by a faster one. */
    this.multiply = (name, x, rows) => multiply(container.tensor(name), x, rows);
    const stack = (path, depth, cross) => (depth === 0 ? null : new Stack(this, path, { depth, cross }));
    this.encoder = stack("encoder", config.encoder_depth, false);
    this.decoder = stack("decoder", config.decoder_depth, this.kind === "encoder-decoder");
    this.last = this.decoder ?? this.encoder;
    this.head = makeHead(this, this.last.embedding.name);
  }

  /** All addresses, in the order of Python's `addresses(model)`. */
  addresses() {
    const own = [...(this.head === null ? [] : ["logits"]), ...(this.kind === "encoder" ? ["vector"] : [])];
    return [...own, ...(this.encoder?.addresses() ?? []), ...(this.decoder?.addresses() ?? [])];
  }

  /**
   * One forward pass → { output, hidden, vector, tape }.
   *
   * tokens     ids; of an encoder-decoder, those of the target
   * source     ids of an encoder-decoder's source
   * memory     what `encode` made of the source, if it is known
   * segments   token types of an encoder; by default 0
   * record     (address) → whether to record the tensor at it
   * edits      Map of address → (tensor → tensor)
   * check      async function that is awaited before every block; it may throw
   * output     logits [T, V]; of classes [C], of tags [T, C]; of an encoder without logits the vector [D]
   * vector     [D] of an encoder, otherwise null
   * tape       Map of address → tensor
   */
  async forward({ tokens, source = null, memory = null, segments = null, record = () => false, edits = new Map(), check = null }) {
    const tape = new Tape(record, edits);
    this.checkInputs(tokens, source, segments);
    this.checkEdits(edits);
    const states = this.kind === "encoder-decoder" ? (memory ?? (await this.encode(source, { tape, check }))) : null;
    const hidden = await this.last.apply([{ tokens, segments, memory: states }], tape, check);
    const logits = this.head === null ? null : tape.tap("logits", this.computeLogits(hidden));
    const vector = this.kind === "encoder" ? tape.tap("vector", this.computeVector(hidden)) : null;
    return { output: logits ?? vector, hidden: { shape: [tokens.length, this.config.width], data: hidden }, vector, tape: tape.tensors };
  }

  /** The keys and values of the encoder output for the cross-attention of each decoder block. */
  async encode(source, { tape = NO_TAPE, check = null } = {}) {
    checkTokens(source, "source");
    const states = await this.encoder.apply([{ tokens: source }], tape, check);
    return this.decoder.blocks.map(({ crossAttention }) => ({ ...crossAttention.project(states), length: source.length }));
  }

  /** The result of the head for h [T, D]; logits of tokens are scaled and soft-capped as the config says. */
  computeLogits(hidden) {
    const { head_kind: kind, scale_logits: scale, width, logit_cap: cap } = this.config;
    const logits = this.head(hidden);
    if (kind !== "next" && kind !== "masked") return logits;
    if (scale) for (let i = 0; i < logits.data.length; i++) logits.data[i] /= Math.sqrt(width);
    softCap(logits.data, cap);
    return logits;
  }

  computeVector(hidden) {
    const { width, pooling, normalize } = this.config;
    return { shape: [width], data: pool(hidden, width, pooling, normalize) };
  }

  checkEdits(edits) {
    if (edits.size > 0) checkEdits(edits, this.addresses(), this.config.experts > 0);
  }

  checkInputs(tokens, source, segments) {
    checkTokens(tokens, "tokens");
    if ((this.kind === "encoder-decoder") !== (source !== null)) {
      const advice = source === null ? "needs a source" : "takes no source";
      throw new RequestError(`A model of kind '${this.kind}' ${advice}.`);
    }
    if (segments !== null && (this.config.segments === 0 || segments.length !== tokens.length)) {
      throw new RequestError("Segments must be as many as the tokens, and need a model whose config has segments.");
    }
  }
}

function checkTokens(tokens, name) {
  if (!(tokens?.length > 0)) throw new RequestError(`The ${name} must be a list of at least one token.`, { param: name });
}
