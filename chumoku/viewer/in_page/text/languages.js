// The languages of a translator: chumoku/text/languages.py.
//
//   source                  translation
//   <2en> text </s>         <s> …                  ours, and >>en<< of Marian: the target language, before the source
//   jpn_Jpan text </s>      </s> eng_Latn …        NLLB, M2M100 (__ja__), mBART-50 (ja_XX)
//   text </s> ja_XX         en_XX …                mBART, where a translation begins with its language

import { RequestError } from "../errors.js";
import { findLanguage } from "../tokenizers/roles.js";

/** The tokens before and after a source: [before, after]. */
export function sourceFrame(tokenizer, { into = null, sourceLanguage = null } = {}) {
  const { roles } = tokenizer;
  const end = roles.end === null ? [] : [roles.end];
  if (!roles.textLanguages.size) {
    if (sourceLanguage !== null) {
      throw new RequestError("This model has no tokens for source languages. Leave source_language (--from) out.");
    }
    return [tokenizer.encode("", { language: into || tokenizer.targetLanguage, source: true }), end];
  }
  const code = sourceLanguage || defaultSourceLanguage(tokenizer);
  if (code === null) throw missingLanguage(roles.textLanguages, "that the text is in: source_language (--from)");
  const language = findLanguage(roles.textLanguages, code);
  const known = new Set(roles.textLanguages.values());
  if (tokenizer.prefixAndSuffix[1].some((token) => known.has(token))) return [[], [...end, language]];
  return [[language], end];
}

/** The tokens that a translation begins with, which are not generated. */
export function targetPrompt(tokenizer, into = null) {
  const { roles } = tokenizer;
  if (roles.begin === null || !roles.textLanguages.size) return roles.begin === null ? [] : [roles.begin];
  const code = into || defaultTargetLanguage(tokenizer);
  if (code === null) throw missingLanguage(roles.textLanguages, "to translate into: into (--into)");
  const language = findLanguage(roles.textLanguages, code);
  return new Set(roles.textLanguages.values()).has(roles.begin) ? [language] : [roles.begin, language];
}

/** The language of the token that the tokenizer's template has around a text, or null. */
export function defaultSourceLanguage(tokenizer) {
  return languageOf(tokenizer, ...tokenizer.prefixAndSuffix.flat(), tokenizer.roles.sourceBegin);
}

/** The language that is translated into if none is given, or null. */
export function defaultTargetLanguage(tokenizer) {
  if (!tokenizer.roles.textLanguages.size) return tokenizer.targetLanguage;
  return languageOf(tokenizer, tokenizer.roles.forcedBegin, tokenizer.roles.begin);
}

/** The languages of sources that the tokenizer has a token for, with the default first. */
export function sourceLanguages(tokenizer) {
  return defaultFirst(tokenizer.roles.textLanguages.keys(), defaultSourceLanguage(tokenizer));
}

/** The languages that can be translated into, with the default first. */
export function targetLanguages(tokenizer) {
  const { textLanguages, languages } = tokenizer.roles;
  return defaultFirst((textLanguages.size ? textLanguages : languages).keys(), defaultTargetLanguage(tokenizer));
}

function defaultFirst(codes, first) {
  const sorted = [...codes].sort();
  return sorted.includes(first) ? [first, ...sorted.filter((code) => code !== first)] : sorted;
}

function languageOf(tokenizer, ...tokens) {
  const codes = new Map([...tokenizer.roles.textLanguages].map(([code, token]) => [token, code]));
  const token = tokens.find((one) => codes.has(one));
  return token === undefined ? null : codes.get(token);
}

function missingLanguage(known, what) {
  const list = [...known.keys()].join(", ");
  return new RequestError(`This model knows ${known.size} languages. Give the one ${what}. It has ${list}.`);
}
