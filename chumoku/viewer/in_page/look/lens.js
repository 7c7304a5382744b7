// Logit lens: the prediction of each layer, if it were the last (nostalgebraist, 2020).
//
//   logits_l = head(norm(x_l))      x_0 is the embedding, x_l the output of block l; logits_L are the model's own
//
// Post-norm models have no final norm, so there x_l goes directly into the head.
import { rows } from "./numbers.js";

/** describe(logits) of every position after the embedding and after each block: [L + 1][T]. `output`: the model's logits. */
export async function applyLens(model, tape, output, describe, check) {
  const { path, blocks, norm } = model.last;
  const addresses = [`${path}.embedding`, ...blocks.slice(0, -1).map((_, layer) => `${path}.blocks.${layer}.output`)];
  const found = [];
  for (const address of addresses) {
    await check();
    const x = tape.get(address).data;
    found.push(rows(model.computeLogits(norm === null ? x : norm(x))).map(describe));
  }
  return [...found, rows(output).map(describe)];
}
