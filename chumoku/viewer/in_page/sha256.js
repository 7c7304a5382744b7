// SHA-256 of bytes that come in pieces. (crypto.subtle does not exist on pages of plain http, and needs all bytes at once.)
//
//   each block of 64 bytes: w₀…w₁₅ are its words, w_t = σ₁(w_{t−2}) + w_{t−7} + σ₀(w_{t−15}) + w_{t−16}
//   64 rounds mix the state (a … h) with w_t and the constants K_t; the result is added to the state
const primes = [];
for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
const fraction = (root) => (root - Math.floor(root)) * 2 ** 32; // the first 32 bits of the fractional part
const K = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const START = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));

export class Sha256 {
  constructor() {
    this.state = Int32Array.from(START);
    this.words = new Int32Array(64);
    this.block = new Uint8Array(64); // the last bytes, until they are a block
    this.length = 0;
  }

  update(bytes) {
    let at = 0;
    const waiting = this.length % 64;
    this.length += bytes.length;
    if (waiting > 0) {
      at = Math.min(64 - waiting, bytes.length);
      this.block.set(bytes.subarray(0, at), waiting);
      if (waiting + at < 64) return this;
      this.compress(this.block, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) this.compress(bytes, at);
    this.block.set(bytes.subarray(at));
    return this;
  }

  /** The sum in hexadecimal digits. */
  digest() {
    const bits = this.length * 8;
    const end = new Uint8Array(9 + ((55 - this.length) & 63)); // 1 bit, zeros, the length in 8 bytes
    end[0] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(end.length - 4, bits >>> 0);
    this.update(end);
    return Array.from(this.state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  compress(bytes, at) {
    const w = this.words;
    for (let t = 0; t < 16; t++, at += 4) w[t] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    for (let t = 16; t < 64; t++) {
      const x = w[t - 15];
      const y = w[t - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[t] = (w[t - 16] + s0 + w[t - 7] + s1) | 0;
    }
    const state = this.state;
    let a = state[0];
    let b = state[1];
    let c = state[2];
    let d = state[3];
    let e = state[4];
    let f = state[5];
    let g = state[6];
    let h = state[7];
    for (let t = 0; t < 64; t++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[t] + w[t]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}

/** The SHA-256 sum of a text in UTF-8. */
export const sha256 = (text) => new Sha256().update(new TextEncoder().encode(text)).digest();
