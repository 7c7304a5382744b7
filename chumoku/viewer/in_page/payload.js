// The numbers of the model: base85 text in chunks  →  bytes  →  SHA-256 compared  →  inflated parts.
//
//   five characters a b c d e  →  the four bytes of  a·85⁴ + b·85³ + c·85² + d·85 + e
//
// chumoku/web/payload.py writes it. A different text decodes to different bytes or to none, so every change is found.
import { Sha256 } from "./sha256.js";

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=>?@^_`{|}~"; // without < and &
const VALUES = new Int32Array(128).fill(-1);
[...DIGITS].forEach((digit, value) => (VALUES[digit.charCodeAt(0)] = value));
const CHARS = 5;
const BYTES = 4;

export class DamagedError extends Error {
  constructor() {
    super("This page is damaged.");
    this.name = "DamagedError";
  }
}

/** Decode a chunk into `bytes` from `start`; returns where it ends. */
function decodeChunk(text, bytes, start) {
  const end = start + (text.length / CHARS) * BYTES;
  if (text.length % CHARS !== 0 || end > bytes.length) throw new DamagedError();
  let wrong = /[^\x00-\x7f]/.test(text) ? -1 : 0; // negative if any digit is
  for (let at = 0, place = start; at < text.length; at += CHARS) {
    const a = VALUES[text.charCodeAt(at) & 127];
    const b = VALUES[text.charCodeAt(at + 1) & 127];
    const c = VALUES[text.charCodeAt(at + 2) & 127];
    const d = VALUES[text.charCodeAt(at + 3) & 127];
    const e = VALUES[text.charCodeAt(at + 4) & 127];
    wrong |= a | b | c | d | e;
    const word = (((a * 85 + b) * 85 + c) * 85 + d) * 85 + e;
    if (word >= 2 ** 32) wrong = -1;
    bytes[place++] = word >>> 24;
    bytes[place++] = word >>> 16;
    bytes[place++] = word >>> 8;
    bytes[place++] = word;
  }
  if (wrong < 0) throw new DamagedError();
  return end;
}

async function inflate(bytes, size) {
  const inflated = new Uint8Array(size);
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  let filled = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    if (filled + value.length > size) throw new DamagedError();
    inflated.set(value, filled);
    filled += value.length;
  }
  if (filled !== size) throw new DamagedError();
  return inflated.buffer;
}

/** parts: [{ name, stored, size, sha256 }], as in the page's contents. */
export class PayloadReader {
  constructor(parts) {
    this.parts = parts;
    this.bytes = new Uint8Array(parts.reduce((sum, { stored }) => sum + padded(stored), 0));
    this.filled = 0;
  }

  add(chunk) {
    this.filled = decodeChunk(chunk, this.bytes, this.filled);
  }

  /** All parts, inflated: name → ArrayBuffer. */
  async finish() {
    if (this.filled !== this.bytes.length) throw new DamagedError();
    const found = {};
    let at = 0;
    for (const { name, stored, size, sha256 } of this.parts) {
      const bytes = this.bytes.subarray(at, at + padded(stored));
      if (new Sha256().update(bytes).digest() !== sha256) throw new DamagedError();
      found[name] = await inflate(bytes.subarray(0, stored), size);
      at += padded(stored);
    }
    return found;
  }
}

const padded = (size) => Math.ceil(size / BYTES) * BYTES;
