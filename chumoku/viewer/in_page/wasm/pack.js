// A container's weights in the memory of the library: native/pack.py in JavaScript.
//
//   float32   [N/4][K][4]          int8   [N/4][K/32], of each group q [16 pairs of inputs][8] and s [4] (native/int8_wasm.h)
//
//   product   kind, outputs, inputs, weight, bias            norm    kind, ε, γ, β
//   norms     of a sublayer: input, output, sum              layer   as in native/structs.h
import { GROUP } from "../container.js";
import { floatBits } from "./library.js";

const FLOAT32 = 0;
const INT8 = 2;
const LANES = 4; // outputs of a block
const INT8_GROUP = (GROUP + 4) * LANES; // bytes of a group of a block
export const NO_PRODUCT = [0, 0, 0, 0, 0];
export const NO_NORM = [0, 0, 0, 0];

export class Packer {
  constructor(library, container) {
    this.library = library;
    this.container = container;
    this.places = new Map(); // name of a matrix → its product without a bias
  }

  /** One product for layers with the same inputs, their outputs side by side. */
  product(layers, sizes, inputs) {
    const biases = layers.map((layer, part) => this.container.optional(`${layer}.bias`, [sizes[part]]));
    const product = this.matrices(layers.map((layer) => `${layer}.weight`), sizes, inputs);
    if (biases.every((bias) => bias === null)) return product;
    const all = new Float32Array(product[1]);
    for (let part = 0, first = 0; part < sizes.length; first += sizes[part++]) all.set(biases[part]?.data ?? [], first);
    return [...product.slice(0, 4), this.library.copyFloats(all)];
  }

  /** The same for matrices by their names, without a bias. */
  matrices(names, sizes, inputs) {
    const weights = names.map((name, part) => this.container.tensor(name, [sizes[part], inputs]));
    const kind = weights[0].kind === "int8" ? INT8 : FLOAT32;
    const outputs = sizes.reduce((sum, size) => sum + size, 0);
    const block = kind === INT8 ? Math.ceil(inputs / GROUP) * INT8_GROUP : 4 * inputs * LANES;
    const size = Math.ceil(outputs / LANES) * block;
    const to = this.library.allocate(size);
    this.library.bytes(to, size).fill(0);
    for (let part = 0, first = 0; part < weights.length; first += sizes[part++]) {
      if (kind === INT8) this.packInt8(weights[part], to, first);
      else this.packFloats(weights[part], to, first);
      if (first % LANES === 0) this.places.set(names[part], [kind, sizes[part], inputs, to + (first / LANES) * block, 0]);
    }
    return [kind, outputs, inputs, to, 0];
  }

  /** The product of one matrix, packed on first use. */
  matrix(name) {
    if (!this.places.has(name)) {
      const [outputs, inputs] = this.container.tensor(name).shape;
      this.matrices([name], [outputs], inputs);
    }
    return this.places.get(name);
  }

  packFloats({ shape: [outputs, inputs], data }, to, first) {
    const packed = this.library.floats(to, Math.ceil((first + outputs) / LANES) * inputs * LANES);
    for (let row = 0; row < outputs; row++) {
      const place = Math.floor((first + row) / LANES) * inputs * LANES + ((first + row) % LANES);
      for (let k = 0; k < inputs; k++) packed[place + k * LANES] = data[row * inputs + k];
    }
  }

  packInt8({ shape: [outputs], groups, q, scale }, to, first) {
    const size = Math.ceil((first + outputs) / LANES) * groups * INT8_GROUP;
    const codes = new Int8Array(this.library.memory.buffer, to, size);
    const scales = this.library.floats(to, size / 4);
    const byArm = this.library.functions.is_arm_order();
    const output = byArm ? 1 : 2, input = byArm ? LANES : 1; // from one output or input of a pair to the next
    for (let row = 0; row < outputs; row++) {
      const lane = (first + row) % LANES;
      let at = Math.floor((first + row) / LANES) * groups * INT8_GROUP;
      for (let g = 0, from = row * groups * GROUP; g < groups; g++, at += INT8_GROUP) {
        scales[(at + GROUP * LANES) / 4 + lane] = scale[row * groups + g];
        for (let place = at + lane * output, end = place + GROUP * LANES; place < end; place += 2 * LANES, from += 2) {
          codes[place] = q[from];
          codes[place + input] = q[from + 1];
        }
      }
    }
  }

  /** A norm by its name; NO_NORM if there is none. */
  norm(name, width, { rms = false } = {}) {
    const { config } = this.container;
    const gamma = this.container.optional(`${name}.gamma`, [width])?.data;
    if (gamma === undefined) return NO_NORM;
    const epsilon = floatBits(config.norm_epsilon);
    if (rms || config.norm === "rms") {
      return [2, epsilon, this.library.copyFloats(config.norm_unit_offset ? gamma.map((value) => 1 + value) : gamma), 0];
    }
    const beta = this.container.optional(`${name}.beta`, [width])?.data;
    if (config.norm === "layer") return [1, epsilon, this.library.copyFloats(gamma), beta ? this.library.copyFloats(beta) : 0];
    // The statistics of a batch norm are fixed, so it is a scale and a shift.
    const [mean, variance] = ["mean", "variance"].map((part) => this.container.tensor(`${name}.${part}`, [width]).data);
    const by = gamma.map((value, i) => value / Math.fround(Math.sqrt(Math.fround(variance[i] + config.norm_epsilon))));
    return [3, 0, this.library.copyFloats(by), this.library.copyFloats(beta.map((value, i) => value - Math.fround(mean[i] * by[i])))];
  }
}
