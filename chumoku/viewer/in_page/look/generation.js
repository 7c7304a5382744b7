// What the looks need of the engine: greedy generation of a continuation or a translation, and the logits after a text.
import { search } from "../decoding/beam.js";
import { generate } from "../decoding/generate.js";

/** The logits [V] after the last token. */
export async function lastLogits({ engine }, { tokens, source }, check) {
  const session = await engine.open({ rows: 1, capacity: tokens.length });
  try {
    if (source) await session.encode([source], { check });
    await check();
    const [logits] = await session.append([{ row: 0, tokens }], { check });
    return logits;
  } finally {
    session.close();
  }
}

/** The logits are NaN or infinite, so no token can be chosen. */
export class NotFiniteError extends Error {}

/** → { tokens, ended }: the most likely token at every step, up to an end token (not included) or the limit.
    source: of an encoder-decoder; with `edits` the JavaScript engine computes them. */
export async function generateGreedily(runtime, { source = null, prompt, limit, edits = null, check }) {
  const { twin, engine, model } = runtime;
  const chosen = edits ? { open: (options) => twin.open({ ...options, edits }) } : engine;
  const context = model.config.position === "learned" ? model.config.context : Infinity;
  if (limit < 1) return { tokens: [], ended: false };
  const write = source ? translate : continueText;
  return write(chosen, runtime, { source, prompt, limit, context, check });
}

async function continueText(engine, { generation }, { prompt, limit, context, check }) {
  const sampling = { temperature: 0, forbidden: generation.forbidden };
  const request = { prompt, maxNewTokens: limit, sampling, ends: generation.ends, minNewTokens: 0, logprobs: null };
  const tokens = [];
  let ended = false;
  for await (const { token, finished } of generate(engine, request, { context, check })) {
    if (finished === "failed") throw new NotFiniteError();
    if (token !== null) tokens.push(token);
    ended = finished === "end";
  }
  return { tokens, ended };
}

async function translate(engine, { generation, tokenizer }, { source, prompt, limit, context, check }) {
  const before = prompt.length - 1; // tokens that take a place besides those that are counted by `limit`
  const limits = [Math.min(limit, context - before)];
  const rules = { end: tokenizer.roles.end, beam: 1, best: 1, lengthPenalty: 1, forbidden: generation.forbidden, limits, minNewTokens: 0 };
  try {
    const [[best]] = await search(engine, [prompt], [source], { rules, check });
    return best;
  } catch (error) {
    throw error.code === "engine_failure" ? new NotFiniteError() : error;
  }
}
