// Splitting a text into sentences, and joining their translations: chumoku/text/sentences.py.
//
//   Japanese    ends at 。！？ with the closing brackets after them, but not inside 「」 and 『』
//   others      ends at . ! ? before a space, but not after an abbreviation, not after the number of a list item, and not
//               before a lowercase letter
//   both        at every line break

import { SPACES, characterAt, isDigit, isLowerCharacter, isSpace, trimEnd } from "./characters.js";

const OPENING = "「『（(“【［";
const CLOSING = "」』）)”】］";
const END = new RegExp(`([。！？!?．.…]+)([${CLOSING}’\\]]*"?)|\\n[${SPACES}]*`, "gu");
const SPACE = new RegExp(`[${SPACES}]*`, "y");
const WORDS = new RegExp(`[^${SPACES}]+`, "g");
// Python's case-insensitive i also matches ı and İ.
const ABBREVIATION =
  /^[("'“‘[]*([a-hj-z]|mrs?|ms|drs?|prof|st|[sj]r|vs|vol|f[iıİ]gs?|[iıİ]nc|ltd|co|corp|gen|col|capt|sgt|rev|hon|gov|sen|rep|mt|e\.g|[iıİ]\.e|cf|al|approx|dept|est|eds?|pp|u\.s|u\.k|u\.n|a\.m|p\.m|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)$/iu;
const EAST_ASIAN = /^[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]/;
const HIRAGANA = /^[\u3040-\u309f]/;
const LONGEST_WORD = 32;

/** The sentences of a text as { text, space }; spaces before the first are a sentence without text. */
export function splitSentences(text) {
  let start = skipSpaces(text, 0);
  const sentences = start ? [{ text: "", space: text.slice(0, start) }] : [];
  let [depth, quotes, seen] = [0, 0, start]; // open brackets and quotation marks of this sentence before `seen`
  for (const match of text.matchAll(END)) {
    const at = match.index;
    if (at < start) continue; // spaces before the first sentence, or a line break that was the space after a sentence
    const between = text.slice(seen, at);
    depth += countBrackets(between);
    quotes += between.split('"').length - 1;
    const [marks, closing] = [match[1], match[2] ?? ""];
    let stop = at;
    seen = at;
    // A quotation mark that opens belongs to the next sentence.
    if (marks !== undefined) stop += match[0].length - (closing.endsWith('"') && quotes % 2 === 0 ? 1 : 0);
    if (marks === undefined || endsSentence(text, start, stop, depth, { at, marks, closing })) {
      const sentence = trimEnd(text.slice(start, stop));
      const rest = skipSpaces(text, stop);
      sentences.push({ text: sentence, space: text.slice(start + sentence.length, rest) });
      [start, seen, depth, quotes] = [rest, rest, 0, 0];
    }
  }
  if (start < text.length) {
    const last = trimEnd(text.slice(start));
    sentences.push({ text: last, space: text.slice(start + last.length) });
  }
  return sentences;
}

/** Translated sentences as one text. Line breaks stay; otherwise a space, or nothing next to Japanese or Chinese. */
export function joinSentences(texts, spaces) {
  let joined = "";
  texts.forEach((text, number) => {
    const last = joined.slice(-1);
    if (text && joined && !isSpace(last)) joined += EAST_ASIAN.test(last) || EAST_ASIAN.test(text) ? "" : " ";
    joined += text;
    if (spaces[number].includes("\n") || (number === 0 && !text)) joined += spaces[number]; // also before the first
  });
  return joined;
}

/** Whether the sentence from `start` to `stop` ends with these marks, which `depth` open brackets surround. */
function endsSentence(text, start, stop, depth, { at, marks, closing }) {
  const after = characterAt(text, stop);
  const before = text.slice(Math.max(0, at - 1), at);
  const follows = characterAt(text, skipSpaces(text, stop));
  if (/[。！？]/.test(marks) || (/[!?．]$/.test(marks) && EAST_ASIAN.test(before))) {
    if (depth + countBrackets(closing) > 0) return false;
    if ((after && "。！？!?、，".includes(after)) || (marks === "．" && isDigit(after))) return false;
    return depth <= 0 || !HIRAGANA.test(follows); // 「はい。」と言った continues after its quotation
  }
  if (after && !isSpace(after)) return false;
  if (marks === "." && follows) {
    const word = lastWord(text, start, at);
    const isListNumber = isDigit(word) && at - start === word.length;
    if (ABBREVIATION.test(word) || isListNumber) return false;
    if (["no", "nos"].includes(word.toLowerCase()) && isDigit(follows)) return false;
  }
  return !isLowerCharacter(follows);
}

function skipSpaces(text, start) {
  SPACE.lastIndex = start;
  SPACE.test(text);
  return SPACE.lastIndex;
}

function lastWord(text, start, stop) {
  const characters = Array.from(text.slice(Math.max(start, stop - 2 * LONGEST_WORD), stop)); // two units each at most
  return characters.slice(-LONGEST_WORD).join("").match(WORDS)?.at(-1) ?? "";
}

/** Opening minus closing brackets. */
function countBrackets(text) {
  let count = 0;
  for (const mark of text) count += OPENING.includes(mark) ? 1 : CLOSING.includes(mark) ? -1 : 0;
  return count;
}
