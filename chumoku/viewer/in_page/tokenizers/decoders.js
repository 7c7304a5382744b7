// Decoders: tokens → text. Each step of the data becomes a function tokens → tokens, and the last ones are joined.

import { fromUtf8, fromValidUtf8, joinBytes, tokenToBytes } from "./byte_chars.js";
import { makePattern, replaceMatches } from "./patterns.js";

const BYTE = /^<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>$/;
// In this order: texts that BERT's decoder writes otherwise.
const CLEANED = [
  ...[".", "?", "!", ","].map((mark) => [` ${mark}`, mark]),
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" do not", " don't"],
  ...["'s", "'ve", "'re"].map((ending) => [` ${ending}`, ending]),
];

/** The function tokens → text; without steps tokens are joined by spaces. */
export function makeDecoder(steps, classes) {
  if (steps === null) return (tokens) => tokens.join(" ");
  const functions = steps.map((step) => STEPS[step.type](step, classes));
  return (tokens) => functions.reduce((result, one) => one(result), tokens).join("");
}

const cleanUp = (text) => CLEANED.reduce((result, [dirty, clean]) => result.replaceAll(dirty, clean), text);

const STEPS = {
  ByteLevel: () => (tokens) => [fromUtf8(joinBytes(tokens.map(tokenToBytes)))],
  ByteFallback: () => (tokens) => {
    const result = [];
    let bytes = [];
    const write = () => {
      const text = fromValidUtf8(Uint8Array.from(bytes));
      result.push(...(text === null ? bytes.map(() => "\ufffd") : bytes.length ? [text] : []));
      bytes = [];
    };
    for (const token of tokens) {
      const found = BYTE.exec(token);
      if (found) bytes.push(parseInt(found[1], 16));
      else {
        write();
        result.push(token);
      }
    }
    write();
    return result;
  },
  Fuse: () => (tokens) => [tokens.join("")],
  Strip: ({ content, start, stop }) => (tokens) =>
    tokens.map((token) => {
      const characters = Array.from(token);
      let [first, last] = [0, characters.length];
      while (first < start && characters[first] === content) first += 1;
      while (characters.length - last < stop && last > first && characters[last - 1] === content) last -= 1;
      return characters.slice(first, last).join("");
    }),
  Replace({ pattern, content }, classes) {
    const found = makePattern(pattern, classes);
    return (tokens) => tokens.map((token) => replaceMatches(found, token, content));
  },
  Metaspace: ({ replacement, prepend_scheme: scheme }) => (tokens) =>
    tokens.map((token, at) => token.replaceAll(replacement, at === 0 && scheme !== "never" ? "" : " ")),
  WordPiece: ({ prefix, cleanup }) => (tokens) =>
    tokens.map((token, at) => {
      const joined = at === 0 ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
      return cleanup ? cleanUp(joined) : joined;
    }),
  BPEDecoder: ({ suffix }) => (tokens) =>
    tokens.map((token, at) => token.replaceAll(suffix, at === tokens.length - 1 ? "" : " ")),
  CTC: ({ pad_token: pad, word_delimiter_token: delimiter, cleanup }) => (tokens) =>
    tokens
      .filter((token, at) => token !== tokens[at - 1])
      .map((token) => token.replaceAll(pad, ""))
      .map((token) => (cleanup ? cleanUp(token).replaceAll(delimiter, " ") : token))
      .filter(Boolean),
};
