// Choosing, drawn: what temperature, top-k, top-p and min-p make of the next token's chances.
//
//   shape    l ← l / temperature            below COLD only the likeliest is left
//   top_k    only the k likeliest
//   top_p    only the fewest likeliest that reach p together
//   min_p    only those at least min_p times as likely as the likeliest
//
// in this order, as the server's choosers do it. Known are the likeliest logits and, of all others together, the
// logarithm `rest` of their sum: those count as equally likely, which is exact at temperature 1 and close elsewhere.
const COLD = 1e-6;

/** { logits (falling), rest, vocabulary } and the rules → { shares, kept, rest, many }; `many` tokens stay. */
export function shaped({ logits, rest, vocabulary }, rules) {
  const others = Math.max(0, vocabulary - logits.length);
  if (!(rules.temperature >= COLD)) return greedy(logits);
  const each = others && Number.isFinite(rest) ? (rest - Math.log(others)) / rules.temperature : -Infinity;
  const warm = logits.map((one) => one / rules.temperature);
  const most = Math.max(...warm, each);
  const weights = warm.map((one) => Math.exp(one - most));
  const weight = Math.exp(each - most); // of each token among the others
  let many = Number.isFinite(each) ? vocabulary : logits.length;
  if (rules.topK) many = Math.min(many, rules.topK);
  if (rules.topP && rules.topP < 1) many = reaching(weights, weight, many, rules.topP);
  if (rules.minP) many = Math.min(many, likely(weights, weight, many, rules.minP));
  const known = Math.min(many, weights.length);
  const total = sum(weights.slice(0, known)) + weight * (many - known);
  return {
    // What is cut shows what it would have had beside those that stay.
    shares: weights.map((one) => one / total),
    kept: weights.map((_, at) => at < known),
    rest: (weight * (many - known || others)) / total,
    many,
  };
}

function greedy(logits) {
  return { shares: logits.map((_, at) => (at ? 0 : 1)), kept: logits.map((_, at) => at === 0), rest: 0, many: 1 };
}

/** How many of the likeliest `many` reach the share p of them together. */
function reaching(weights, weight, many, p) {
  const known = Math.min(many, weights.length);
  const goal = p * (sum(weights.slice(0, known)) + weight * (many - known));
  let reached = 0;
  for (let at = 0; at < known; at++) {
    reached += weights[at];
    if (reached >= goal) return at + 1;
  }
  return Math.min(many, known + Math.max(1, Math.ceil((goal - reached) / weight)) || known);
}

/** How many of the likeliest `many` are at least p times as likely as the likeliest. */
function likely(weights, weight, many, p) {
  const enough = weights.slice(0, many).filter((one) => one >= p * weights[0]).length;
  return enough === weights.length && many > enough && weight >= p * weights[0] ? many : enough;
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
