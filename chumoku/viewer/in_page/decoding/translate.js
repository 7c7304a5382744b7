// /v1/translate: texts → hypotheses, optionally with their alignment and the tree of the beam search.
//
//   text → sentences, addresses replaced → (language) source tokens + end → beam search from begin (language) → text
//
// The sentences of a text are translated one by one and joined: tokens in a row, the score summed, the alignment in
// blocks along the diagonal, and the tree of a sentence starts at the end of the path chosen before. The same as
// server/translate.py and decoding/translate.py.
import { RequestError } from "../errors.js";
import { boolean, checkBody, either, integer, list, optional, text } from "../request_body.js";
import { trimStart } from "../text/characters.js";
import { keepWords, restoreWords } from "../text/kept_words.js";
import { sourceFrame, targetPrompt } from "../text/languages.js";
import { joinSentences, splitSentences } from "../text/sentences.js";
import { align } from "./alignment.js";
import { search } from "./beam.js";
import { Tree } from "./beam_tree.js";
import { number } from "./body_types.js";
import { makeUsage } from "./responses.js";
import { formatCount, longest, requireModel } from "./served_model.js";

const MAX_TEXTS = 64;
const MAX_NEW_TOKENS = 4096;
const WIDEST_TREE = 8;
const LONGEST_ALIGNED = 512; // source tokens: the alignment has a cell for every pair of tokens
const BATCH_TOKENS = 1024; // of sentences that are searched together: rows × longest × beam
const STAND_IN_CHARACTERS = "BKPRT23456";
const language = text({ min: 1, max: 64 });
const TRANSLATION = {
  model: text({ min: 1, max: 256 }),
  text: either(text(), list(text(), { min: 1, max: 1024 })),
  beam: optional(integer({ min: 1, max: 16 }), 4),
  n: optional(integer({ min: 1, max: 16 }), 1),
  length_penalty: optional(number({ min: -10, max: 10 }), 1),
  max_tokens: optional(integer({ min: 1, max: 1 << 20 })),
  into: optional(language),
  source_language: optional(language),
  split: optional(boolean, true),
  alignment: optional(boolean, false),
  tree: optional(boolean, false),
};

export async function translate(runtime, given, check) {
  const body = checkBody(TRANSLATION, given);
  const texts = [body.text].flat();
  requireModel(runtime, body.model, "encoder-decoder", "cannot translate");
  checkLimits(body, texts);
  const { split, begin } = encodeTexts(runtime, texts, body);
  const sources = split.flatMap((one) => one.sources);
  const trees = body.tree ? sources.map(() => new Tree()) : [];
  const found = await searchAll(runtime, sources, { body, begin, check, trees });
  const translations = [];
  let first = 0;
  for (const one of split) {
    const rows = found.slice(first, (first += one.sources.length));
    translations.push(await describeText(runtime, one, rows, { body, begin, check, trees }));
  }
  const count = (rows) => rows.reduce((total, row) => total + row.length, 0);
  const usage = makeUsage(count(sources), count(found.flat().map((one) => one.tokens)));
  return { object: "translation", model: runtime.name, translations, usage };
}

function checkLimits(body, texts) {
  const refuse = (message, param) => {
    throw new RequestError(message, { param });
  };
  if (texts.length > MAX_TEXTS) refuse(`${texts.length} texts were given; the limit is ${MAX_TEXTS}.`, "text");
  texts.forEach((one, place) => {
    if (!trimStart(one)) refuse(`Text ${place + 1} is empty.`, "text");
  });
  if (body.n > body.beam) refuse(`n is ${body.n}, but it must be at most beam, which is ${body.beam}.`, "n");
  if (body.tree && (texts.length > 1 || body.beam > WIDEST_TREE))
    refuse(`tree requires one text and a beam of at most ${WIDEST_TREE}.`, "tree");
  if ((body.max_tokens ?? 1) > MAX_NEW_TOKENS)
    refuse(`max_tokens must be at most ${formatCount(MAX_NEW_TOKENS)}.`, "max_tokens");
}

/** { split: [{ sources, sentences }], begin }: the sentences of each text as tokens, and what a translation begins with. */
function encodeTexts({ model, tokenizer, sourceTokenizer }, texts, body) {
  const parts = texts.map((one) => (body.split ? splitText(one, sourceTokenizer) : [{ kept: unchanged(one), space: "" }]));
  const count = parts.flat().filter((sentence) => sentence.kept.text).length;
  if (count > MAX_TEXTS) {
    const message = `The texts have ${formatCount(count)} sentences; the limit is ${MAX_TEXTS}.`;
    throw new RequestError(`${message} "split": false translates each text as a whole.`, { param: "text" });
  }
  const begin = withParam("into", () => targetPrompt(tokenizer, body.into));
  const param = body.source_language ? "source_language" : body.into ? "into" : "text";
  const options = { into: body.into, sourceLanguage: body.source_language };
  const [before, after] = withParam(param, () => sourceFrame(sourceTokenizer, options));
  const encode = (sentence, place) => {
    const tokens = sourceTokenizer.encode(sentence.kept.text);
    const source = tokens.length ? [...before, ...tokens, ...after] : [];
    checkSource(model, source, place, param);
    return source;
  };
  const split = parts.map((part, place) => ({ sources: part.map((one) => encode(one, place)), sentences: part }));
  split.forEach((one, place) => checkText(one, place, body));
  return { split, begin };
}

const unchanged = (text) => ({ text, after: "", words: [] });

/** The sentences of a text, with stand-ins for words to keep: [{ kept, space }]. */
function splitText(whole, tokenizer) {
  const isUnknown = (character) => tokenizer.isUnknown(character);
  const keeping = ![...STAND_IN_CHARACTERS].some(isUnknown); // a vocabulary of words has no stand-ins
  const keep = (sentence) => (keeping ? keepWords(sentence, isUnknown) : unchanged(sentence));
  return splitSentences(whole).map((sentence) => ({ kept: keep(sentence.text), space: sentence.space }));
}

function checkSource(model, source, place, param) {
  const most = longest(model, model.config.context);
  if (source.length <= model.config.context) return;
  const message =
    `Text ${place + 1}: a sentence has ${formatCount(source.length)} tokens with the end token, and this model reads ` +
    `${formatCount(most)} at most. Split it, or use a model with a larger context.`;
  throw new RequestError(message, { param, code: "context_length_exceeded" });
}

function checkText({ sources, sentences }, place, body) {
  if (!sources.some((one) => one.length) && !sentences.some((one) => one.kept.after))
    throw new RequestError(`Text ${place + 1} has no token that this model knows. Use another text.`, { param: "text" });
  const tokens = sources.reduce((total, source) => total + source.length, 0);
  if (!body.alignment || sources.length < 2 || tokens <= LONGEST_ALIGNED) return;
  const limit = `a text of several sentences is aligned up to ${LONGEST_ALIGNED}`;
  throw new RequestError(`Text ${place + 1} has ${formatCount(tokens)} tokens; ${limit}.`, { param: "alignment" });
}

/** Run a function; its errors name the field that is wrong. */
function withParam(param, run) {
  try {
    return run();
  } catch (error) {
    if (error instanceof RequestError) error.param = param;
    throw error;
  }
}

/** The hypotheses of each source; none for an empty one. */
async function searchAll({ engine, model, tokenizer, generation }, sources, { body, begin, check, trees }) {
  const { end } = tokenizer.roles;
  if (!begin.length || end === null)
    throw new RequestError("Translation needs a begin token and an end token; this tokenizer does not have both.");
  const before = begin.length - 1; // tokens that take a place besides those that are counted by the limit
  const found = sources.map(() => []);
  const lengths = sources.map((source) => source.length);
  const most = trees.length ? 0 : BATCH_TOKENS; // each tree has a search of its own
  for (const numbers of groupByLength(lengths, body.beam, most)) {
    const some = numbers.map((number) => sources[number]);
    const limits = some.map((source) => longest(model, before + (body.max_tokens ?? 2 * source.length + 20)) - before);
    const rules = {
      ...{ end, beam: body.beam, best: body.n, lengthPenalty: body.length_penalty },
      ...{ forbidden: generation.forbidden, limits, minNewTokens: 0 },
    };
    const tree = trees[numbers[0]] ?? null;
    const rows = await search(engine, some.map(() => begin), some, { rules, check, tree });
    numbers.forEach((number, place) => (found[number] = rows[place]));
  }
  return found;
}

/** Groups of sentences of similar length, longest first, with rows × longest × beam ≤ `most` where possible. */
function groupByLength(lengths, beam, most) {
  const order = [...lengths.keys()].filter((number) => lengths[number]).sort((a, b) => lengths[b] - lengths[a]);
  const groups = [];
  for (const number of order) {
    const group = groups.at(-1);
    if (group && (group.length + 1) * lengths[group[0]] * beam <= most) group.push(number);
    else groups.push([number]);
  }
  return groups;
}

async function describeText(runtime, part, rows, { body, begin, check, trees }) {
  const { tokenizer, sourceTokenizer } = runtime;
  const described = [];
  for (const [place, row] of rows.entries()) {
    const source = part.sources[place];
    const memory = body.alignment && row.length ? await runtime.model.encode(source, { check }) : null;
    described.push([]);
    for (const one of row) described[place].push(await describeHypothesis(runtime, source, one, { memory, begin, check }));
  }
  const most = Math.max(1, ...described.map((row) => row.length)); // one also for a text of symbols only
  const pick = (nth) => described.map((row) => row[Math.min(nth, row.length - 1)] ?? null);
  return {
    source: sourceTokenizer.labelTokens(part.sources.flat()),
    stand_ins: part.sentences.flatMap(({ kept }) => kept.words.map(([name, word]) => ({ name, word }))),
    hypotheses: Array.from({ length: most }, (_, nth) => joinHypotheses(pick(nth), part)),
    tree: trees.length ? describeTrees(trees, rows, tokenizer) : null,
  };
}

/** With its alignment, if there is a memory: the encoder's output for the source. */
async function describeHypothesis({ model, tokenizer }, source, one, { memory, begin, check }) {
  const labels = tokenizer.labelTokens([...one.tokens, ...(one.ended ? [tokenizer.roles.end] : [])]);
  const tokens = labels.map((label, place) => ({ ...label, logprob: one.logprobs[place] }));
  const hypothesis = { text: tokenizer.decode(one.tokens), score: one.score, tokens };
  if (memory === null) return hypothesis;
  const options = { memory, begin, count: tokens.length, tokenizer, check };
  return { ...hypothesis, ...(await align(model, source, one.tokens, options)) };
}

/** One hypothesis for a text from those of its sentences; null for a sentence without text. */
function joinHypotheses(sentences, part) {
  const found = sentences.filter((one) => one !== null);
  const restored = sentences.map((one, place) => restoreWords(one?.text ?? "", part.sentences[place].kept));
  const joined = {
    text: joinSentences(restored, part.sentences.map((one) => one.space)),
    score: found.reduce((total, one) => total + one.score, 0),
    tokens: found.flatMap((one) => one.tokens),
  };
  if (!found.every((one) => one.alignment)) return joined;
  const widths = part.sources.map((source) => source.length);
  const total = widths.reduce((sum, width) => sum + width, 0);
  const zeros = (count) => Array(count).fill(0);
  let before = 0;
  const alignment = sentences.flatMap((one, place) => {
    const after = total - before - widths[place];
    const rows = (one?.alignment ?? []).map((row) => [...zeros(before), ...row, ...zeros(after)]);
    before += widths[place];
    return rows;
  });
  return { ...joined, alignment, candidates: found.flatMap((one) => one.candidates) };
}

/** One tree from those of the sentences: each starts at the end of the path that was chosen before it. */
function describeTrees(trees, rows, tokenizer) {
  const nodes = [];
  let [last, steps, score] = [-1, 0, 0];
  trees.forEach((tree, place) => {
    if (!rows[place].length) return;
    tree.finish(rows[place][0].tokens, tokenizer.roles.end);
    const before = nodes.length;
    for (const { parent, token, ...node } of tree.nodes)
      nodes.push({
        parent: parent >= 0 ? parent + before : last,
        id: token,
        text: tokenizer.label(token),
        logprob: node.logprob,
        score: node.score + score,
        step: node.step + steps,
        state: node.state,
      });
    last = nodes.findLastIndex((node) => node.state === "chosen");
    if (last >= 0) [steps, score] = [nodes[last].step, nodes[last].score];
  });
  return { nodes };
}
