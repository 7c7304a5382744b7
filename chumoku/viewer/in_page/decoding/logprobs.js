// Log probabilities of a generated token, and of the most likely tokens in its place.
//
//   log p(t) = l_t − log Σ exp(l)        of the model's own logits, before penalties, bias and temperature
import { logSumExp, rankRow } from "./ranking.js";

/** { logprob of the token, top: the `count` most likely tokens as [token, logprob] }. */
export function likelihood(logits, token, count) {
  const normalizer = logSumExp(logits);
  const top = rankRow(logits, new Set(), Math.min(count, logits.length));
  const logprob = (logit) => Math.fround(logit - normalizer);
  return { logprob: logprob(logits[token]), top: top.map((one) => [one.token, logprob(one.logit)]) };
}
