// How temperature, top-k, top-p and min-p change the probabilities of the next token.
//
//   temperature    l ← l / temperature; below GREEDY only the most probable token is left
//   top_k          keep the k most probable tokens
//   top_p          keep the fewest most probable tokens whose probabilities sum to p
//   min_p          drop tokens whose probability is below min_p times the highest
//
// in this order, as on the server. Only the highest logits are known, and `rest`, the logarithm of the sum of exp(l) of
// all others. These are treated as equally probable, which is exact at temperature 1 and an approximation otherwise.
const GREEDY = 1e-6;

/** { logits (descending), rest, vocabulary }, rules → { shares, kept, rest, count }; `count` tokens can be sampled. */
export function applySampling({ logits, rest, vocabulary }, rules) {
  const others = Math.max(0, vocabulary - logits.length);
  if (!(rules.temperature >= GREEDY)) return greedy(logits);
  const each = others && Number.isFinite(rest) ? (rest - Math.log(others)) / rules.temperature : -Infinity;
  const scaled = logits.map((one) => one / rules.temperature);
  const most = Math.max(...scaled, each);
  const weights = scaled.map((one) => Math.exp(one - most));
  const weight = Math.exp(each - most); // of each unknown token
  let count = Number.isFinite(each) ? vocabulary : logits.length;
  if (rules.topK) count = Math.min(count, rules.topK);
  if (rules.topP && rules.topP < 1) count = countTopP(weights, weight, count, rules.topP);
  if (rules.minP) count = Math.min(count, countMinP(weights, weight, count, rules.minP));
  const known = Math.min(count, weights.length);
  const total = sum(weights.slice(0, known)) + weight * (count - known);
  return {
    // Dropped tokens have the share that they would have beside those that are kept.
    shares: weights.map((one) => one / total),
    kept: weights.map((_, at) => at < known),
    rest: (weight * (count - known || others)) / total,
    count,
  };
}

function greedy(logits) {
  return { shares: logits.map((_, at) => (at ? 0 : 1)), kept: logits.map((_, at) => at === 0), rest: 0, count: 1 };
}

/** How many of the `count` most probable tokens are needed to reach the share p. */
function countTopP(weights, weight, count, p) {
  const known = Math.min(count, weights.length);
  const goal = p * (sum(weights.slice(0, known)) + weight * (count - known));
  let reached = 0;
  for (let at = 0; at < known; at++) {
    reached += weights[at];
    if (reached >= goal) return at + 1;
  }
  return Math.min(count, known + Math.max(1, Math.ceil((goal - reached) / weight)) || known);
}

/** How many of the `count` most probable tokens are at least p times as probable as the first. */
function countMinP(weights, weight, count, p) {
  const enough = weights.slice(0, count).filter((one) => one >= p * weights[0]).length;
  return enough === weights.length && count > enough && weight >= p * weights[0] ? count : enough;
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
