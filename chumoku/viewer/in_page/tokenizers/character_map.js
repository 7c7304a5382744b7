// SentencePiece's character maps as the `tokenizers` library applies them: see chumoku/web/character_map.py.
//
//   ﬁ → fi    e + ´ → é    Ａ → A

import { toUtf8 } from "./byte_chars.js";
import { classTest } from "./classes.js";

const MAX_BYTES = 5; // of a grapheme that is looked up

/** The function text → text of a character map. */
export function makeCharacterMap({ entries, extending, prepending, controls }, classes) {
  const known = new Map();
  for (let at = 0; at < entries.length; at += 2) known.set(entries[at], entries[at + 1]);
  const [extends_, prepends, isControl] = [extending, prepending, controls].map((one) => classTest(classes[one]));

  /** What the map writes for the shortest start of the characters that it has, or undefined. */
  function lookUp(characters) {
    let start = "";
    for (const character of characters) {
      start += character;
      if (known.has(start)) return known.get(start);
    }
    return undefined;
  }

  /** The index after the grapheme that begins at `at`. */
  function graphemeEnd(characters, at) {
    if (isControl(characters[at])) return at + (characters[at] === "\r" && characters[at + 1] === "\n" ? 2 : 1);
    let end = at + 1;
    while (end < characters.length && prepends(characters[end - 1]) && !isControl(characters[end])) end += 1;
    while (end < characters.length && extends_(characters[end])) end += 1;
    return end;
  }

  return (text) => {
    const characters = Array.from(text);
    let result = "";
    for (let at = 0, end; at < characters.length; at = end) {
      end = graphemeEnd(characters, at);
      const grapheme = characters.slice(at, end);
      const isShort = grapheme.length <= MAX_BYTES && toUtf8(grapheme.join("")).length <= MAX_BYTES;
      const mapped = isShort ? lookUp(grapheme) : undefined;
      result += mapped ?? grapheme.map((character) => lookUp([character]) ?? character).join("");
    }
    return result;
  };
}
