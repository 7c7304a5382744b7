// The tokens with which a model is inspected, made from the text of a request.
//
//   encoder           [before] text [after]                      predictions at the masks, or at every place
//   decoder           text, then its continuation: generated, or given
//   encoder-decoder   source: [language] text [end]; target: [begin], then its translation: generated, or given
//
// Tokens are generated greedily. A text longer than can be shown is cut, with a notice in two languages.
//
//   prompt = { tokens, promptLength, nextToken, source, masked, name(token), names, sourceNames }
import { RequestError } from "../errors.js";
import { defaultTargetLanguage, sourceFrame, targetPrompt } from "../text/languages.js";
import { predictsTokens } from "./checks.js";
import { generateGreedily, NotFiniteError } from "./generation.js";

export const MAX_TOKENS = 128; // with the maps of all layers
export const MAX_TOKENS_ONE_LAYER = 512;
const MAX_MAP_VALUES = 3_000_000; // of all maps together
const MANY_UNKNOWN = 0.3; // share of unknown tokens that gives a notice
const NEW = 8; // tokens that a decoder generates by default
const NAN_NOTICE = [
  "The model's logits are not finite (NaN), so it generated no text. Its internal values are shown as they are.",
  "モデルの出力が有限の数値ではない（NaN）ため、何も書けませんでした。内部の値はそのまま表示しています。",
];
const grouped = (number) => number.toLocaleString("en-US");

/** The most tokens that can be inspected: limited by `most`, the context, and the size of the maps of all layers. */
export function longest(config, most = MAX_TOKENS, layers = Infinity) {
  const encoder = Math.min(config.encoder_depth, layers);
  const decoder = Math.min(config.decoder_depth, layers);
  const maps = config.heads * (encoder + decoder * (encoder ? 2 : 1));
  const side = Math.floor(Math.sqrt(Math.floor(MAX_MAP_VALUES / Math.max(1, maps))));
  return Math.max(2, Math.min(most, config.context, side));
}

/** → { prompt, notices }. If the model's logits are NaN, the prompt alone is inspected. `edits` apply to generation. */
export async function promptFromRequest(runtime, request, check, { most = longest(runtime.model.config), edits = null } = {}) {
  const { text, target, new: count } = request;
  if (target !== null && runtime.model.kind === "encoder")
    throw new RequestError("An encoder generates no text, so it has no target. Leave 'target' out.");
  try {
    return await makePrompt(runtime, { text, target, count, most, edits, check });
  } catch (error) {
    if (!(error instanceof NotFiniteError)) throw error;
    const { prompt, notices } = await makePrompt(runtime, { text, target, count: 0, most, edits, check });
    return { prompt, notices: [...notices, NAN_NOTICE] };
  }
}

async function makePrompt(runtime, wanted) {
  const make = { encoder: encoderPrompt, decoder: decoderPrompt, "encoder-decoder": translationPrompt }[runtime.model.kind];
  const notices = [];
  const found = await make(runtime, wanted, notices);
  return { prompt: withNames(runtime, found), notices };
}

function withNames({ tokenizer, sourceTokenizer }, found) {
  const prompt = { nextToken: null, source: null, masked: [], ...found };
  const names = (own, tokens) => own.labelTokens(tokens).map(({ text }) => text);
  return {
    ...prompt,
    name: (token) => tokenizer.label(token),
    names: names(tokenizer, prompt.tokens),
    sourceNames: names(sourceTokenizer, prompt.source ?? []),
  };
}

// ---- the three kinds ----
function encoderPrompt({ tokenizer }, { text, most }, notices) {
  const { mask } = tokenizer.roles;
  const [before, after] = tokenizer.frame;
  const parts = mask === null ? [text] : text.split(tokenizer.token(mask));
  const ids = parts.flatMap((part, at) => [...(at ? [mask] : []), ...(part.trim() ? tokenizer.encode(part) : [])]);
  const tokens = [...before, ...cut(ids, most - before.length - after.length, "text", notices), ...after];
  const places = tokens.map((_, place) => place);
  const masks = places.filter((place) => tokens[place] === mask);
  const masked = masks.length ? masks : places.slice(before.length, tokens.length - after.length);
  return { tokens, promptLength: tokens.length, masked };
}

async function decoderPrompt(runtime, { text, target, count, most, edits, check }, notices) {
  const { tokenizer } = runtime;
  const [before] = tokenizer.prefixAndSuffix;
  const limit = predictsTokens(runtime.model.config) ? (count ?? NEW) : 0;
  let given = target === null ? null : givenTokens(runtime, target, Math.floor(most / 2), notices);
  const room = Math.max(1, most - before.length - (given ? given.tokens.length : limit));
  const prompt = [...before, ...cut(tokenizer.encode(text), room, "text", notices, { last: true })];
  if (!given) {
    const { tokens } = await generateGreedily(runtime, { prompt, limit, edits, check });
    given = { tokens, ended: tokens.length < limit };
  }
  const nextToken = given.ended ? tokenizer.roles.end : null;
  return { tokens: [...prompt, ...given.tokens], promptLength: prompt.length, nextToken };
}

async function translationPrompt(runtime, { text, target, count, most, edits, check }, notices) {
  const { tokenizer } = runtime;
  const source = sourceTokens(runtime, text, most, notices);
  const { begin, end } = tokenizer.roles;
  if (begin === null || end === null)
    throw new RequestError("Translation needs a begin token and an end token; this tokenizer does not have both.");
  const prompt = defaultTargetLanguage(tokenizer) ? targetPrompt(tokenizer) : [begin];
  let given;
  if (target === null) {
    const limit = Math.min(count ?? 2 * source.length + 20, most - 1);
    given = await generateGreedily(runtime, { source, prompt, limit, edits, check });
  } else {
    given = givenTokens(runtime, target, most - 1, notices);
    given.ended ||= typeof target === "string";
  }
  return { tokens: [...prompt, ...given.tokens], promptLength: prompt.length, nextToken: given.ended ? end : null, source };
}

// ---- tokens of texts ----
/** The tokens of a source text, with those around it. */
export function sourceTokens({ sourceTokenizer }, text, most, notices) {
  const [before, after] = sourceFrame(sourceTokenizer);
  const ids = sourceTokenizer.encode(text);
  noteUnknown(sourceTokenizer, ids, notices);
  return [...before, ...cut(ids, most - before.length - after.length, "text", notices), ...after];
}

/** The tokens of a given output without the end token, and whether they ended with it. */
function givenTokens({ tokenizer, model }, target, most, notices) {
  if (typeof target === "string") return { tokens: cut(tokenizer.encode(target), most, "target", notices), ended: false };
  const size = model.config.vocabulary;
  const unknown = target.find((token) => token >= size);
  if (unknown !== undefined)
    throw new RequestError(`There is no token ${unknown}: this model has ${grouped(size)}, numbered from 0.`);
  const ended = target.length > 0 && target.at(-1) === tokenizer.roles.end;
  const ids = ended ? target.slice(0, -1) : target;
  return { tokens: ids.length ? cut(ids, most, "target", notices) : [], ended };
}

/** Add a notice if many tokens are unknown, for example because the text is in another language. */
function noteUnknown(tokenizer, ids, notices) {
  const lost = ids.filter((token) => token === tokenizer.roles.unknown).length;
  if (lost <= ids.length * MANY_UNKNOWN) return;
  notices.push([
    `${lost} of the text's ${ids.length} tokens are unknown to this model. Does it read this language?`,
    `入力文の ${ids.length} トークンのうち ${lost} は、このモデルの知らないものです。言語は合っていますか。`,
  ]);
}

/** At most `most` tokens: the first ones, or with `last` the last ones. */
function cut(ids, most, what, notices, { last = false } = {}) {
  if (!ids.length) throw new RequestError(`The ${what} has no token that this model knows. Give another one.`);
  if (ids.length <= most) return ids;
  const [which, kept] = last ? ["last", "最後"] : ["first", "最初"];
  const japanese = { text: "入力文", target: "出力文" }[what];
  notices.push([
    `The ${what} has ${grouped(ids.length)} tokens; only the ${which} ${most} were given to the model and are shown.`,
    `${japanese}は ${grouped(ids.length)} トークンあり、${kept}の ${most} トークンだけをモデルに与えて表示しています。`,
  ]);
  return last ? ids.slice(-most) : ids.slice(0, most);
}

export function generatedText(tokenizer, { tokens, promptLength }) {
  return tokenizer.decode(tokens.slice(promptLength).filter((token) => token < tokenizer.size));
}
