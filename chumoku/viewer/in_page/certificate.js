// The page compared with Python: chumoku/web/checks.py put Python's numbers into the page.
//
//   apart = √ mean (page − Python)²  over all compared numbers of all probes, which must not exceed checks.limit
//   and all tokens are equal: the most likely ones, continuations, and those of texts
//
// Generating models are run through their sessions, piece by piece, so that the cache is compared, too.

/** POST /v1/certificate, streamed: { done, total } … and last { results: one per engine }. */
export async function* certify(runtime, body, check) {
  const { checks } = runtime.container;
  const engines = runtime.engines;
  const total = engines.length * (checks.probes.length + checks.continuations.length);
  const results = [];
  let done = 0;
  for (const engine of engines) {
    const found = new Comparison(checks, engine);
    for (const probe of checks.probes) {
      found.addProbe(probe, await runProbe(engine, probe, check));
      yield { done: ++done, total };
    }
    for (const given of checks.continuations) {
      await found.addContinuation(given, engine, check);
      yield { done: ++done, total };
    }
    results.push(found.result(runtime));
  }
  yield { results };
}

/** The output at each place of a probe: [Float32Array]. */
async function runProbe(engine, { tokens, source, places }, check) {
  if (!engine.model.decoder || engine.model.config.labels !== null) {
    const { output } = await engine.model.forward({ tokens, source: source.length ? source : null, check });
    const width = output.shape.at(-1);
    return places.map(({ at }) => (at === null ? output.data : output.data.subarray(at * width, (at + 1) * width)));
  }
  return withSession(engine, { source, capacity: tokens.length }, async (session) => {
    const outputs = [];
    let from = 0;
    for (const { at } of places) {
      await check();
      outputs.push((await session.append([{ row: 0, tokens: tokens.slice(from, at + 1) }]))[0].slice());
      from = at + 1;
    }
    return outputs;
  });
}

async function withSession(engine, { source, capacity }, work) {
  const session = await engine.open({ rows: 1, capacity });
  try {
    if (source.length) await session.encode([source]);
    return await work(session);
  } finally {
    session.close();
  }
}

class Comparison {
  constructor(checks, engine) {
    this.checks = checks;
    this.engine = engine;
    this.squares = 0;
    this.numbers = 0;
    this.largest = { difference: 0, place: "" };
    this.best = { equal: 0, total: 0 }; // most likely tokens
    this.generated = { equal: 0, total: 0 };
    this.seconds = 0; // of steps with one token
    this.steps = 0;
  }

  addProbe({ name, places }, outputs) {
    places.forEach(({ at, columns, values }, index) => {
      const output = outputs[index];
      columns.forEach((column, number) => {
        const difference = Math.abs(output[column] - values[number]);
        this.squares += difference ** 2; // NaN stays NaN, which is not below the limit
        this.numbers += 1;
        if (!(difference <= this.largest.difference)) this.largest = { difference, place: at === null ? name : `${name}, position ${at}` };
      });
      this.best.total += 1;
      this.best.equal += argmax(output) === columns[0] ? 1 : 0;
    });
  }

  async addContinuation({ source, prompt, tokens }, engine, check) {
    const capacity = prompt.length + tokens.length;
    const generated = await withSession(engine, { source, capacity }, async (session) => {
      const found = [];
      let next = prompt;
      while (found.length < tokens.length) {
        await check();
        const start = performance.now();
        const [logits] = await session.append([{ row: 0, tokens: next }]);
        if (found.length) this.seconds += (performance.now() - start) / 1000;
        if (found.length) this.steps += 1;
        found.push(argmax(logits));
        next = [found.at(-1)];
      }
      return found;
    });
    this.generated.total += tokens.length;
    this.generated.equal += generated.filter((token, at) => token === tokens[at]).length;
  }

  result({ tokenizer, sourceTokenizer }) {
    const texts = compareTexts(this.checks.texts, tokenizer, sourceTokenizer);
    const apart = Math.sqrt(this.squares / this.numbers);
    const allEqual = [this.best, this.generated, texts].every(({ equal, total }) => equal === total);
    return {
      engine: this.engine.kind,
      threads: this.engine.threads ?? 1,
      compared: this.checks.compared,
      numbers: this.numbers,
      apart,
      limit: this.checks.limit,
      largest: this.largest,
      best: this.best,
      generated: this.generated,
      texts,
      tokens_per_second: this.steps ? this.steps / this.seconds : null,
      passed: apart <= this.checks.limit && allEqual,
    };
  }
}

function compareTexts(texts, tokenizer, sourceTokenizer) {
  const same = (ids, expected) => ids.length === expected.length && ids.every((id, at) => id === expected[at]);
  let equal = 0;
  for (const { text, tokens, source_tokens: source } of texts) {
    if (same(tokenizer.encode(text), tokens) && (source === null || same(sourceTokenizer.encode(text), source))) equal += 1;
  }
  return { equal, total: texts.length };
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}
