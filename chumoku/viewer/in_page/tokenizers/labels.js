// Readable names of tokens: chumoku/probe/token_labels.py, and the texts and bytes of chumoku/server/token_text.py.
//
//   text                    unchanged, but a space becomes ␣ and a line end ⏎; SentencePiece's ▁ is kept
//   part of a character     its bytes: ‹e3›; in a row of tokens that has all of them, the character: 鬱 1/3, 鬱 2/3, 鬱 3/3
//   not in the tokenizer    #51200: a model's vocabulary may be a little larger than its tokenizer's

import { fromValidUtf8, showPiece, toUtf8 } from "./byte_chars.js";

export const BYTE_TOKEN = /^<0x[0-9A-F]{2}>$/;
const BYTES = /^(?:‹[0-9a-f]{2}›)+$/;
const MAX_CHARS = 24;
const MAX_PARTS = 8; // tokens that are searched for the bytes of a character
const BYTES_PREFIX = "bytes:";

const hexadecimal = (number) => number.toString(16).padStart(2, "0");

/** A short name of a token id, in one line. */
export function tokenLabel(tokenizer, id) {
  if (!(id >= 0 && id < tokenizer.size)) return `#${id}`;
  let name = tokenizer.token(id);
  if (tokenizer.byteLevel && !tokenizer.specials.has(name)) name = showPiece(tokenizer.decodeBytes([id]));
  else if (BYTE_TOKEN.test(name)) name = showPiece(Uint8Array.of(parseInt(name.slice(3, 5), 16)));
  return makeVisible(tokenizer, name) || `#${id}`;
}

/** Each token of a row as { id, text }; one that is a part of a character also has { character, part }. */
export function labelTokens(tokenizer, ids) {
  const labels = ids.map((id) => tokenLabel(tokenizer, id));
  const rows = [];
  while (rows.length < ids.length) {
    const start = rows.length;
    const { count, character } = BYTES.test(labels[start]) ? nextCharacter(tokenizer, labels, start) : { count: 1 };
    if (count === 1) rows.push({ id: ids[start], text: labels[start] });
    for (let part = 1; count > 1 && part <= count; part += 1) {
      rows.push({ id: ids[start + part - 1], text: `${character} ${part}/${count}`, character, part });
    }
  }
  return rows;
}

/** How many labels from `start` are one character, and the character; 1 if it is incomplete. */
function nextCharacter(tokenizer, labels, start) {
  const bytes = [];
  for (let count = 1; count <= MAX_PARTS && BYTES.test(labels[start + count - 1] ?? ""); count += 1) {
    bytes.push(...labels[start + count - 1].match(/[0-9a-f]{2}/g).map((pair) => parseInt(pair, 16)));
    const text = fromValidUtf8(Uint8Array.from(bytes));
    if (text !== null) return { count, character: makeVisible(tokenizer, text) };
  }
  return { count: 1 };
}

/** A text that can be drawn: without control characters and direction marks, and at most MAX_CHARS long. */
export function makeVisible(tokenizer, text) {
  const drawn = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  const shown = Array.from(drawn, (one) => (tokenizer.isInvisible(one) ? `‹${hexadecimal(one.codePointAt(0))}›` : one));
  const characters = Array.from(shown.join(""));
  return characters.length <= MAX_CHARS ? characters.join("") : `${characters.slice(0, MAX_CHARS - 1).join("")}…`;
}

/** The bytes of a token; of a special token its name, of a number beyond the tokenizer nothing. */
export function tokenBytes(tokenizer, id) {
  if (!(id >= 0 && id < tokenizer.size)) return new Uint8Array();
  const name = tokenizer.token(id);
  if (tokenizer.specials.has(name)) return toUtf8(name);
  if (tokenizer.byteLevel) return tokenizer.decodeBytes([id]);
  if (BYTE_TOKEN.test(name)) return Uint8Array.of(parseInt(name.slice(3, 5), 16));
  return toUtf8(name.replaceAll("▁", " "));
}

/** { text, bytes } of a token; an incomplete character is written as in the OpenAI API: bytes:\xe3\x81 */
export function tokenText(tokenizer, id) {
  const bytes = tokenBytes(tokenizer, id);
  const text = fromValidUtf8(bytes);
  if (text !== null) return { text, bytes };
  return { text: BYTES_PREFIX + Array.from(bytes, (byte) => `\\x${hexadecimal(byte)}`).join(""), bytes };
}
