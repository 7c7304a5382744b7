// Sampling: how logits l [V] become the next token, in this order.
//
//   repetition_penalty r   l ← l / r where l > 0, else l · r    tokens in the prompt or the generated text
//   presence_penalty c     l ← l − c                            the same tokens, however often they occur
//   frequency_penalty f    l ← l − f · n                        n: how often the generated text contains the token
//   bias                   l ← l + b                            per token; forbidden tokens have b = −∞
//   temperature            l ← l / temperature                  temperature 0: greedy, the most likely token
//   top_k                  keep the k most likely tokens
//   top_p                  keep the smallest set of most likely tokens whose probabilities sum to p
//   min_p                  keep tokens at least min_p times as likely as the most likely one
//   draw                   the first token t with e₀ + … + e_t > u · (e₀ + … + e_{V−1}),  e = exp(l),  u from [0, 1)
//
// The same as decoding/sampling.py; only the random numbers u are others.
import { makeRandom } from "./random.js";

const SMALLEST = 1e-6; // a lower temperature is greedy
const RANGES = [4, 8, 16, 32, Infinity]; // how far below the largest logit the tokens of top_p are looked for
export const INVALID = -1;

export class Sampler {
  /** options: the names above, with forbidden: tokens, and seed; end tokens are forbidden before minNewTokens. */
  constructor(options, { prompt = [], ends = [], minNewTokens = 0 } = {}) {
    Object.assign(this, { options, ends, minNewTokens, generated: 0 });
    this.seen = new Set(prompt);
    this.counts = new Map(); // of generated tokens
    this.random = makeRandom(options.seed ?? 0);
  }

  /** The next token after these logits, or INVALID if they are not finite. */
  sample(logits) {
    const token = draw(this.process(new Float32Array(logits)), this.options, this.random);
    this.generated++;
    this.seen.add(token);
    this.counts.set(token, (this.counts.get(token) ?? 0) + 1);
    return token;
  }

  /** Apply penalties and biases, in place. */
  process(logits) {
    const { repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0, bias = {}, forbidden = [] } = this.options;
    const repetition = Math.fround(repetition_penalty);
    if (repetition !== 1 || presence_penalty !== 0)
      for (const token of this.seen) {
        const logit = Math.fround(logits[token] > 0 ? logits[token] / repetition : logits[token] * repetition);
        logits[token] = logit - Math.fround(presence_penalty);
      }
    if (frequency_penalty)
      for (const [token, count] of this.counts) logits[token] -= Math.fround(Math.fround(frequency_penalty) * count);
    for (const [token, value] of Object.entries(bias)) logits[token] += Math.fround(value);
    for (const token of forbidden) logits[token] += -Infinity;
    if (this.generated < this.minNewTokens) for (const token of this.ends) logits[token] += -Infinity;
    return logits;
  }
}

/** A token of the distribution that temperature, top_k, top_p and min_p make of the logits. */
export function draw(logits, options, random) {
  const first = firstLargest(logits);
  const best = logits[first];
  if (!Number.isFinite(best)) return INVALID;
  if (options.temperature < SMALLEST) return first;
  const weights = new Float64Array(logits.length);
  for (let token = 0; token < logits.length; token++)
    weights[token] = Math.exp((logits[token] - best) / options.temperature);
  const kept = keepTokens(logits, weights, options);
  const goal = random() * sum(kept, weights);
  let reached = 0;
  for (const token of kept) {
    reached += weights[token];
    if (reached > goal) return token;
  }
  return kept.findLast((token) => weights[token] > 0); // where rounding left the sum below its goal
}

/** The tokens that can be drawn, ascending. */
export function keepTokens(logits, weights, { temperature, top_k, top_p, min_p }) {
  if (!top_k && !top_p && !min_p) return [...weights.keys()];
  let kept = null; // the most likely first
  if (top_k) kept = mostLikely(logits, temperature, (tokens) => tokens.length >= top_k).slice(0, top_k);
  if (top_p) {
    const goal = top_p * (kept ? sum(kept, weights) : weights.reduce((total, weight) => total + weight, 0));
    kept ??= mostLikely(logits, temperature, (tokens) => sum(tokens, weights) >= goal);
    kept = kept.slice(0, countUntil(kept, weights, goal));
  }
  if (min_p) kept = (kept ?? [...weights.keys()]).filter((token) => weights[token] >= min_p);
  return kept.sort((a, b) => a - b);
}

/** The most likely tokens in order, equal ones by their number: as many as are enough, or all. */
function mostLikely(logits, temperature, isEnough) {
  const best = logits[firstLargest(logits)];
  for (const range of RANGES) {
    const tokens = [];
    for (let token = 0; token < logits.length; token++) if (best - logits[token] <= range * temperature) tokens.push(token);
    if (range === Infinity || isEnough(tokens)) return tokens.sort((a, b) => logits[b] - logits[a] || a - b);
  }
  return [];
}

/** How many of these tokens have weights that sum to the goal. */
function countUntil(tokens, weights, goal) {
  let [reached, count] = [0, 0];
  while (count < tokens.length && (count === 0 || reached < goal)) reached += weights[tokens[count++]];
  return count;
}

const sum = (tokens, weights) => tokens.reduce((total, token) => total + weights[token], 0);

/** The index of the largest number; of a NaN, if there is one. */
export function firstLargest(numbers) {
  let best = 0;
  for (let at = 0; at < numbers.length; at++) {
    if (Number.isNaN(numbers[at])) return at;
    if (numbers[at] > numbers[best]) best = at;
  }
  return best;
}
