// Beam search: the most likely outputs of a model, with `beam` hypotheses per sentence.
//
//   score(y) = log p(y | x) / ((5 + |y|) / 6)^α         |y| counts the end token; α is the length penalty
//
//   step        of all continuations of a sentence's live hypotheses, the `beam` most likely without end token stay
//               live; those with an end token that are among the first `beam` of all are finished
//   done        when `beam` hypotheses are finished, or when no live one can score above the best of them
//   at `limit`  hypotheses are cut, and compete as they are
//
// The same as decoding/beam.py. A beam of one is greedy search.
import { RequestError } from "../errors.js";
import { rankCandidates } from "./ranking.js";

export const NOT_FINITE = "The model's logits are not finite numbers, so no token can be chosen.";

/** The `best` hypotheses for each prompt, best first: [[{ tokens, score, logprobs, ended }]].
    sources    of an encoder-decoder: the source tokens for each prompt
    rules      { end, beam, best, lengthPenalty, forbidden: tokens, limits: most tokens of each row, minNewTokens }
    check      awaited at every step; may throw to stop the search
    tree       records the search of the first prompt */
export async function search(engine, prompts, sources, { rules, check, tree = null }) {
  const { beam } = rules;
  const capacity = Math.max(...prompts.map((prompt, row) => prompt.length - 1 + rules.limits[row]));
  const session = await engine.open({ rows: prompts.length * beam, capacity });
  try {
    if (sources) await session.encode(sources.flatMap((source) => Array(beam).fill(source)), { check });
    // The first step has one hypothesis per sentence, in the first of its rows.
    let rows = prompts.map((_, number) => number * beam);
    let logits = await session.append(prompts.map((tokens, number) => ({ row: rows[number], tokens })), { check });
    let live = prompts.map((_, number) => ({ number, beams: [{ before: null, token: -1, total: 0 }] }));
    const found = prompts.map(() => []);
    for (let length = 1; ; length++) {
      await check();
      const step = advance(live, logits, rules, length);
      step.forEach((one) => collect(found[one.number], one, rules, length));
      if (tree && step[0].number === 0) growTree(tree, step[0], rules, length);
      const staying = step.filter((one) => !isDone(found[one.number], one.beams[0].total, rules, length, one.number));
      if (!staying.length) break;
      const parents = staying.flatMap((one) => one.kept.map(({ row }) => rows[one.first + row]));
      if (beam > 1 || staying.length < live.length) session.reorder(parents);
      live = staying;
      rows = parents.map((_, row) => row);
      const tokens = live.flatMap((one) => one.beams.map((prefix) => [prefix.token]));
      logits = await session.append(tokens.map((each, row) => ({ row, tokens: each })), { check });
    }
    if (!found.every((one) => one.length)) throw new RequestError(NOT_FINITE, { status: 500, code: "engine_failure" });
    return found.map((one) => one.sort((a, b) => b.score - a.score).slice(0, rules.best));
  } finally {
    session.close();
  }
}

const score = (rules, total, length) => total / ((5 + length) / 6) ** rules.lengthPenalty;

/** Whether no live hypothesis (all have log p ≤ `total`) can still beat the `best` finished ones. */
function isDone(found, total, rules, length, number) {
  const limit = rules.limits[number];
  if (length >= limit || found.length >= rules.beam || total === -Infinity) return true;
  const attainable = Math.max(score(rules, total, length + 1), score(rules, total, limit));
  return found.filter((one) => one.score >= attainable).length >= rules.best;
}

/** For each sentence its candidates, and the `beam` most likely of them that do not end (`kept`, as prefixes `beams`). */
function advance(live, logits, rules, length) {
  const forbidden = new Set(length <= rules.minNewTokens ? [...rules.forbidden, rules.end] : rules.forbidden);
  let first = 0;
  return live.map(({ number, beams }) => {
    const rows = logits.slice(first, first + beams.length);
    const totals = beams.map((one) => one.total);
    const candidates = rankCandidates(rows, totals, forbidden, 2 * rules.beam);
    // If there are fewer tokens than beams, too few may be left, and the rest of the beam gets −∞.
    const ended = candidates.filter((one) => one.token === rules.end).map((one) => ({ ...one, total: -Infinity }));
    const kept = [...candidates.filter((one) => one.token !== rules.end), ...ended].slice(0, rules.beam);
    const longer = kept.map(({ total, row, token }) => ({ before: beams[row], token, total }));
    const step = { number, first, candidates, kept, previous: beams, beams: longer };
    first += beams.length;
    return step;
  });
}

/** Add the candidates among the first `beam` that end here, or that are cut here, to `found`. */
function collect(found, { number, candidates, previous }, rules, length) {
  const cut = rules.limits[number] === length;
  for (const { total, row, token } of candidates.slice(0, rules.beam)) {
    const ended = token === rules.end;
    if (!(cut || ended) || !Number.isFinite(total)) continue;
    const { tokens, logprobs } = spellOut({ before: previous[row], token, total });
    found.push({ tokens: ended ? tokens.slice(0, -1) : tokens, score: score(rules, total, length), logprobs, ended });
  }
}

/** The tokens of a hypothesis, and log p of each. */
function spellOut(last) {
  const [tokens, logprobs] = [[], []];
  for (let prefix = last; prefix.before; prefix = prefix.before) {
    tokens.push(prefix.token);
    logprobs.push(prefix.total - prefix.before.total);
  }
  return { tokens: tokens.reverse(), logprobs: logprobs.reverse() };
}

/** Add the candidates of the first sentence to the tree: which end here and which stay live. */
function growTree(tree, { candidates, kept }, rules, length) {
  const cut = rules.limits[0] === length;
  const ended = candidates.map((one, nth) => nth < rules.beam && (cut || one.token === rules.end));
  tree.grow(candidates, ended, cut ? [] : kept, length);
}
