// Bytes as text: GPT-2's characters for the 256 bytes, UTF-8 in both directions, and readable pieces.

const encoder = new TextEncoder();
const lossy = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** byte → character: printable bytes are their own character, the others start at U+0100. */
export const BYTE_TO_CHAR = byteCharacters();
const CHAR_TO_BYTE = new Map(BYTE_TO_CHAR.map((character, byte) => [character, byte]));

function byteCharacters() {
  const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : 256 + others++));
}

export const toUtf8 = (text) => encoder.encode(text);

/** The text of bytes; invalid ones become �. */
export const fromUtf8 = (bytes) => lossy.decode(bytes);

/** The text of bytes, or null if they are not valid. */
export function fromValidUtf8(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/** A text with one character for each of its bytes. */
export function toByteCharacters(text) {
  return Array.from(toUtf8(text), (byte) => BYTE_TO_CHAR[byte]).join("");
}

/** The bytes that a token of byte characters stands for; of any other text its UTF-8. */
export function tokenToBytes(token) {
  const bytes = Array.from(token, (character) => CHAR_TO_BYTE.get(character));
  return bytes.includes(undefined) ? toUtf8(token) : Uint8Array.from(bytes);
}

/** Several arrays of bytes as one. */
export function joinBytes(arrays) {
  const joined = new Uint8Array(arrays.reduce((size, one) => size + one.length, 0));
  let at = 0;
  for (const one of arrays) {
    joined.set(one, at);
    at += one.length;
  }
  return joined;
}

/** Bytes as readable text; an incomplete character is shown as its bytes. */
export function showPiece(bytes) {
  const text = fromValidUtf8(bytes);
  if (text !== null) return text.replaceAll(" ", "␣").replaceAll("\n", "⏎");
  return Array.from(bytes, (byte) => `‹${byte.toString(16).padStart(2, "0")}›`).join("");
}
