// Words that a translation must contain unchanged: chumoku/text/kept_words.py.
//
//   text           詳しくは www.example.com を見てください。
//   model reads    詳しくは B2 を見てください。                       B2 stands for the address: models copy such names
//   it writes      Please see B2 for details.
//   result         Please see www.example.com for details.

import { ALPHANUMERIC, SPACES, isAlphanumeric, trimEnd } from "./characters.js";

const ADDRESS =
  /(?:https?:\/\/|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%[\]()-]{1,2000}|[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,9}/g;
const AFTER_ADDRESS = ".,;:!?)]"; // marks that belong to the sentence
const HAN = "\\u3005\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
// Han characters; letters of other scripts; symbols; any other character.
const WORD = new RegExp(
  `[${HAN}]+|(?:(?![${HAN}\\p{Nd}\\u3040-\\u30ff])[${ALPHANUMERIC}])+|[^${ALPHANUMERIC}_${SPACES}]+|[^]`,
  "gu",
);
const ASCII_WORD = /[A-Za-z0-9]/;
const LEARNED = /[\u0000-\u007f\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]/; // characters that are never kept
const FORMAT = /\p{Cf}/u; // such as a soft hyphen
const STAND_INS = Array.from("23456", (digit) => Array.from("BKPRT", (letter) => letter + digit)).flat();

/**
 * Replace words to keep by stand-ins; `isUnknown` tells whether the tokenizer cannot write a character.
 * Returns { text, after, words }: the sentence as the model reads it, the symbols after it, and [stand-in, word] pairs.
 */
export function keepWords(text, isUnknown) {
  const unknown = new Set(Array.from(new Set(text)).filter((one) => !LEARNED.test(one) && isUnknown(one)));
  const visible = new Set([...unknown].filter((character) => !FORMAT.test(character)));
  let spans = Array.from(text.matchAll(ADDRESS), trimAddress);
  if (visible.size) {
    const found = [...text.matchAll(WORD)].filter((match) => Array.from(match[0]).some((one) => visible.has(one)));
    spans = spans.concat(found.map((match) => trimSymbols(match, unknown)));
  }
  if (!spans.length) return { text, after: "", words: [] };
  spans = mergeSpans(text, spans);
  let after = "";
  const [lastStart, lastStop] = spans.at(-1);
  if (lastStop === text.length && !Array.from(text.slice(lastStart)).some(isAlphanumeric)) {
    spans.pop();
    const kept = trimEnd(text.slice(0, lastStart));
    after = text.slice(kept.length);
    text = kept;
  }
  const read = text.normalize("NFKC").toUpperCase(); // a tokenizer may read Ｂ２ and b2 as B2
  const free = STAND_INS.filter((name) => !read.includes(name));
  const words = [];
  let [result, end] = ["", 0];
  spans.slice(0, free.length).forEach(([start, stop], place) => {
    words.push([free[place], text.slice(start, stop)]);
    result += text.slice(end, start) + free[place];
    end = stop;
  });
  return { text: result + text.slice(end), after, words };
}

/** The translation with the kept words instead of their stand-ins; a word without a stand-in is appended in brackets. */
export function restoreWords(translation, kept) {
  let missing = "";
  for (const [name, word] of kept.words) {
    const found = new RegExp(`(?<![A-Za-z0-9])${name}(?![A-Za-z0-9])`, "g");
    if (translation.search(found) >= 0) translation = translation.replace(found, () => word);
    else missing += ` (${word})`;
  }
  return translation + missing + kept.after;
}

/** The spans in order, extended over letters and digits next to them; those that touch are one. */
function mergeSpans(text, spans) {
  const merged = [];
  for (let [start, stop] of spans.sort((one, other) => one[0] - other[0] || one[1] - other[1])) {
    while (stop < text.length && ASCII_WORD.test(text[stop])) stop += 1;
    const first = merged.length ? merged.at(-1)[1] : 0;
    while (start > first && ASCII_WORD.test(text[start - 1])) start -= 1;
    if (merged.length && start <= first) [start, stop] = [merged.pop()[0], Math.max(first, stop)];
    merged.push([start, stop]);
  }
  return merged;
}

/** The span of a word; of symbols only from the first unknown to the last, without the sentence's own marks. */
function trimSymbols(match, unknown) {
  const characters = Array.from(match[0]);
  if (isAlphanumeric(characters[0])) return [match.index, match.index + match[0].length];
  const first = characters.findIndex((one) => unknown.has(one));
  const last = characters.findLastIndex((one) => unknown.has(one));
  const start = match.index + characters.slice(0, first).join("").length;
  return [start, start + characters.slice(first, last + 1).join("").length];
}

/** The span of an address without the marks after it that belong to the sentence. */
function trimAddress(match) {
  let length = match[0].length;
  while (length && AFTER_ADDRESS.includes(match[0][length - 1])) length -= 1;
  if (match[0].slice(0, length).includes("(") && match[0][length] === ")") length += 1;
  return [match.index, match.index + length];
}
