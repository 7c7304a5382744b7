// Embeddings: tokens in, logits out.
//
//   x = E[token]               the row of the table; with scale_embedding, · √D
//   logits = h Eᵀ  or  h W     tied: the embedding table is the output matrix; untied: a separate matrix
import { GROUP } from "../container.js";
import { RequestError } from "../errors.js";
import { addBias } from "./linear.js";

export class Embedding {
  constructor(model, path, size, { scale = false } = {}) {
    this.width = model.config.width;
    this.name = `${path}.table`;
    this.size = size;
    this.table = model.container.tensor(this.name, [size, this.width]);
    this.factor = scale ? Math.fround(Math.sqrt(this.width)) : 1;
  }

  apply(tokens) {
    const x = new Float32Array(tokens.length * this.width);
    tokens.forEach((token, row) => {
      if (!Number.isInteger(token) || token < 0 || token >= this.size) {
        throw new RequestError(`There is no token ${token}: this table has ${this.size}, numbered 0 to ${this.size - 1}.`);
      }
      readRow(this.table, token, x.subarray(row * this.width, (row + 1) * this.width));
    });
    if (this.factor !== 1) for (let i = 0; i < x.length; i++) x[i] *= this.factor;
    return x;
  }
}

/** One row of a float32 or int8 table. */
function readRow(table, row, x) {
  if (table.kind === "float32") {
    x.set(table.data.subarray(row * x.length, (row + 1) * x.length));
    return;
  }
  const { groups, q, scale } = table;
  for (let d = 0; d < x.length; d++) x[d] = q[row * groups * GROUP + d] * scale[row * groups + Math.floor(d / GROUP)];
}

/**
 * h [rows, D] → logits [rows, V]. `table` is the name of the embedding's table, the output matrix of a tied model. (Some
 * int8 models have a float32 table; then the output matrix is stored at `path`, even if it is tied.)
 */
export class Logits {
  constructor(model, path, table) {
    const { vocabulary, width, tie_output: tied } = model.config;
    this.model = model;
    this.width = width;
    this.name = tied && !model.container.has(`${path}.weight`) ? table : `${path}.weight`;
    model.container.tensor(this.name, [vocabulary, width]);
    this.bias = model.container.optional(`${path}.bias`, [vocabulary]);
  }

  apply(hidden) {
    return addBias(this.model.multiply(this.name, hidden, hidden.length / this.width), this.bias);
  }
}
