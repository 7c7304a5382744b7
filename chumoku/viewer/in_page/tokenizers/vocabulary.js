// The tokens of a model and their ids, and the tokens <0x00> … <0xFF> for single bytes.

import { toUtf8 } from "./byte_chars.js";

/** { token(id), id(token), byteIds(text) } */
export function makeVocabulary({ tokens, ids }) {
  const numbers = new Map(tokens.map((token, at) => [token, ids ? ids[at] : at]));
  const names = ids ? new Map(tokens.map((token, at) => [ids[at], token])) : null;
  const bytes = Array.from({ length: 256 }, (_, byte) =>
    numbers.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
  );
  return {
    token: (id) => (names ? names.get(id) : tokens[id]),
    id: (token) => numbers.get(token),
    /** The ids of the tokens for each byte of a text, or null if one is missing. */
    byteIds(text) {
      const found = Array.from(toUtf8(text), (byte) => bytes[byte]);
      return found.includes(undefined) ? null : found;
    },
  };
}
