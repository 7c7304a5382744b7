// A step of beam search: the most likely continuations of a sentence's live hypotheses.
//
//   log p(token) = logit − (m + log Σ exp(logit − m))        m = max logit, sums in float32
//
// Equal numbers are ranked by row, then by token; NaN comes first. The same as ranking.h and `rank_plain` in Python.

/** The `wanted` most likely continuations of one sentence, best first: [{ total, row, token }].
    rows: the logits of its live hypotheses; totals: log p of each so far; forbidden: a Set of tokens. */
export function rankCandidates(rows, totals, forbidden, wanted) {
  const candidates = rows.flatMap((logits, row) => {
    const best = rankRow(logits, forbidden, Math.min(wanted, logits.length));
    const normalizer = Math.fround(logSumExp(logits));
    const sum = (logit) => Math.fround(Math.fround(logit - normalizer) + Math.fround(totals[row]));
    return best.map(({ logit, token }) => ({ total: sum(logit), row, token }));
  });
  candidates.sort((a, b) => Number(Number.isNaN(b.total)) - Number(Number.isNaN(a.total)) || compare(b.total, a.total));
  // If there are fewer tokens than beams, the rest of the beam gets −∞.
  const missing = Array(Math.max(0, wanted - candidates.length)).fill({ ...candidates.at(-1), total: -Infinity });
  return [...candidates, ...missing].slice(0, wanted);
}

const compare = (a, b) => (a > b ? 1 : a < b ? -1 : 0);

/** The `width` largest logits of the tokens that are allowed: [{ logit, token }]. */
export function rankRow(logits, forbidden, width) {
  const best = Array(width).fill({ logit: -Infinity, token: 0 });
  let [found, bound] = [0, width ? -Infinity : Infinity];
  for (let token = 0; token < logits.length; token++) {
    const logit = logits[token];
    if (!(logit > bound) || forbidden.has(token)) continue;
    let place = Math.min(found++, width - 1);
    for (; place > 0 && logit > best[place - 1].logit; place--) best[place] = best[place - 1];
    best[place] = { logit, token };
    bound = best[width - 1].logit;
  }
  return best;
}

/** m + log Σ exp(x − m), where m is the largest x, or the largest that is a number. */
export function logSumExp(x) {
  let [m, sum] = [-Infinity, 0];
  for (let i = 0; i < x.length; i++) if (x[i] > m) m = x[i];
  if (!Number.isFinite(m)) return m;
  for (let i = 0; i < x.length; i++) sum += Math.exp(x[i] - m);
  return m + Math.log(sum);
}
