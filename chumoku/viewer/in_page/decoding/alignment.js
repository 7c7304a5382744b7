// The alignment of a translation, from one more forward pass.
//
//   alignment[t][s] = mean over layers and heads of the cross-attention from token t to source token s        Σ_s = 1
import { logSumExp, rankRow } from "./ranking.js";

const CANDIDATES = 5;
const WEIGHTS = /^decoder\.blocks\.\d+\.cross_attention\.weights$/;

/** { alignment, candidates }: for each of `count` target tokens, where it looked and the most likely tokens there.
    memory: what model.encode made of the source; begin: the tokens before the first generated one. */
export async function align(model, source, tokens, { memory, begin, count, tokenizer, check }) {
  const record = (address) => WEIGHTS.test(address);
  const { output, tape } = await model.forward({ source, memory, tokens: [...begin, ...tokens], record, check });
  const first = begin.length - 1;
  const rows = Array.from({ length: count }, (_, place) => first + place);
  const alignment = rows.map((row) => meanOverHeads([...tape.values()], row));
  const logits = (row) => output.data.subarray(row * output.shape[1], (row + 1) * output.shape[1]);
  return { alignment, candidates: rows.map((row) => mostLikely(logits(row), tokenizer)) };
}

/** The mean over layers and heads of row t of weights [H, T, S] of each layer. */
function meanOverHeads(layers, t) {
  const [heads, targets, sources] = layers[0].shape;
  const mean = Array(sources).fill(0);
  for (const { data } of layers)
    for (let head = 0; head < heads; head++)
      for (let s = 0; s < sources; s++) mean[s] += data[(head * targets + t) * sources + s] / (heads * layers.length);
  return mean;
}

/** The most likely tokens: [{ id, text, probability }]. */
function mostLikely(logits, tokenizer) {
  const normalizer = logSumExp(logits);
  const best = rankRow(logits, new Set(), Math.min(CANDIDATES, logits.length));
  const probability = (logit) => Math.exp(logit - normalizer);
  return best.map(({ logit, token }) => ({ id: token, text: tokenizer.label(token), probability: probability(logit) }));
}
