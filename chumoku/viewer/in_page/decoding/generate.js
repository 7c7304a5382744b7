// Generation: a decoder continues a prompt, one token at a time.
//
//   prompt → (sample a token → append)* → events
//
// The session of the last text is kept, so that a prompt that begins with the same tokens needs only the rest of them:
// a conversation grows at its end.
import { likelihood } from "./logprobs.js";
import { INVALID, Sampler } from "./sampling.js";

const CHUNK = 32; // prompt tokens that are read before others may have a turn
const MIN_CAPACITY = 512; // positions: a conversation grows
const kept = new WeakMap(); // engine → { session, tokens: those it has read, capacity }

/** The events of a text: { token, finished, likelihood, cached }; finished is null, "end", "length" or "failed", and
    the end token itself has token null.
    request    { prompt, maxNewTokens, sampling, ends, minNewTokens, logprobs: how many of the most likely, or null }
    context    most tokens of prompt and text together */
export async function* generate(engine, request, { context, check }) {
  const { prompt, ends } = request;
  const limit = Math.min(request.maxNewTokens, context - prompt.length);
  if (limit < 1) return yield { token: null, finished: "length", likelihood: null, cached: 0 };
  const reader = await openReader(engine, prompt, prompt.length + limit, context);
  try {
    const { cached } = reader;
    const sampler = new Sampler(request.sampling, { prompt, ends, minNewTokens: request.minNewTokens });
    let logits = await reader.read(prompt.slice(cached), check);
    for (;;) {
      const token = sampler.sample(logits);
      if (token === INVALID) return yield { token: null, finished: "failed", likelihood: null, cached };
      if (ends.includes(token)) return yield { token: null, finished: "end", likelihood: null, cached };
      const last = sampler.generated >= limit;
      const likely = request.logprobs === null ? null : likelihood(logits, token, request.logprobs);
      yield { token, finished: last ? "length" : null, likelihood: likely, cached };
      if (last) return undefined;
      logits = await reader.read([token], check);
    }
  } finally {
    reader.keep();
  }
}

/** A session that has read as much of the prompt as possible. Nobody else gets it before it is kept again. */
async function openReader(engine, prompt, capacity, context) {
  const last = kept.get(engine);
  kept.delete(engine);
  if (!last || last.capacity < capacity) {
    last?.session.close();
    const room = Math.min(context, Math.max(MIN_CAPACITY, 2 ** Math.ceil(Math.log2(capacity)))); // for what follows
    return new Reader(engine, await engine.open({ rows: 1, capacity: room }), [], room);
  }
  const same = last.tokens.findIndex((token, place) => token !== prompt[place]);
  const shared = Math.min(same < 0 ? last.tokens.length : same, prompt.length - 1);
  if (shared < last.tokens.length) last.session.truncate(0, shared);
  return new Reader(engine, last.session, last.tokens.slice(0, shared), last.capacity);
}

class Reader {
  constructor(engine, session, tokens, capacity) {
    Object.assign(this, { engine, session, tokens, capacity, cached: tokens.length });
  }

  /** The logits after these tokens. */
  async read(tokens, check) {
    let logits = null;
    for (let from = 0; from < tokens.length; from += CHUNK) {
      await check();
      const part = tokens.slice(from, from + CHUNK);
      [logits] = await this.session.append([{ row: 0, tokens: part }], { check });
      this.tokens.push(...part);
    }
    return logits;
  }

  /** The next text may go on from here; a session that another text has kept meanwhile is closed. */
  keep() {
    this.session.truncate(0, this.tokens.length); // the last tokens may have been read in part
    kept.get(this.engine)?.session.close();
    kept.set(this.engine, { session: this.session, tokens: this.tokens, capacity: this.capacity });
  }
}
