// Random numbers of a text: a pure function of its seed (xoshiro128**, Blackman and Vigna, 2018).

/** A function that returns numbers from [0, 1), always the same ones for a seed. */
export function makeRandom(seed) {
  const state = scramble(seed);
  const rotate = (x, by) => (x << by) | (x >>> (32 - by));
  const next = () => {
    const result = Math.imul(rotate(Math.imul(state[1], 5), 7), 9) >>> 0;
    const shifted = state[1] << 9;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotate(state[3], 11);
    return result;
  };
  return () => ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53;
}

/** A seed that differs each time. */
export function randomSeed() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high >>> 11) * 2 ** 32 + low;
}

/** Four numbers of 32 bits, each of which depends on all bits of the seed (the finalizer of MurmurHash 3). */
function scramble(seed) {
  const words = [Math.floor(seed / 2 ** 32) | 0, seed | 0];
  let x = 0;
  const mix = (word) => {
    x = (x + word + 0x9e3779b9) | 0;
    let y = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    y = Math.imul(y ^ (y >>> 13), 0xc2b2ae35);
    return (x = y ^ (y >>> 16));
  };
  words.forEach(mix);
  return Uint32Array.from([1, 2, 3, 4], mix);
}
