// Tables of positions 0 … P − 1 in the memory of the library, from a stack of the model in JavaScript; as in
// native/positions.py:
//
//   rotation   cos and sin for each rotary base [bases, 2, P, R/2]; the second base is that of local layers
//   bias       added to scores [H, 2 P]: for a key d positions after the query, at P − 1 + d

const FIRST = 256; // positions whose tables are computed first; doubled when more are needed

export class PositionTables {
  constructor(library, { rotary, localRotary, bias }) {
    this.library = library;
    this.rotaries = rotary === null ? [] : [...new Set([rotary, localRotary])];
    this.distances = bias;
    this.positions = this.rotation = this.bias = 0;
  }

  /** Make the tables for at least so many positions; there will never be more than `most`. */
  prepare(positions, most) {
    if (positions <= this.positions) return;
    for (const table of [this.rotation, this.bias]) this.library.release(table);
    this.positions = this.rotation = this.bias = 0;
    const count = Math.max(positions, Math.min(most, Math.max(FIRST, 2 * positions)));
    if (this.rotaries.length) this.rotation = this.library.copyFloats(this.computeRotation(count));
    if (this.distances !== null) this.bias = this.library.copyFloats(this.computeBias(count));
    this.positions = count;
  }

  computeRotation(count) {
    const size = count * this.rotaries[0].frequencies.length;
    const table = new Float32Array(this.rotaries.length * 2 * size);
    this.rotaries.forEach((rotary, base) => {
      rotary.prepare(count);
      table.set(rotary.cos.subarray(0, size), 2 * base * size);
      table.set(rotary.sin.subarray(0, size), (2 * base + 1) * size);
    });
    return table;
  }

  computeBias(count) {
    const { heads } = this.distances;
    const table = new Float32Array(heads * 2 * count);
    for (let head = 0; head < heads; head++) {
      for (let at = 0; at < 2 * count; at++) table[head * 2 * count + at] = this.distances.compute(count - 1 - at, head);
    }
    return table;
  }
}
