// Attention maps: stacked over the layers, rolled out through them, and packed for a response.
//
//   rollout   R ← ½ (Ā + I) R                          Ā is the mean over heads, I the residual path (Abnar, Zuidema, 2020)
//
// The decoder of an encoder-decoder has two rollouts, over its own tokens (R) and over the source tokens (C):
//
//   self      R ← ½ (Ā + I) R,   C ← ½ (Ā + I) C
//   cross     R ← ½ R,           C ← ½ C + ½ Ā_cross R_encoder
//
// A map is { shape: [L, H, T, S], data }.
import { base64, entropy, mean } from "./numbers.js";

const PARTS = [
  ["encoder", "encoder", "attention"],
  ["decoder", "decoder", "attention"],
  ["cross", "decoder", "cross_attention"],
];
const MAX_UINT16 = 65535;

/** The attention weights on a tape: "encoder", "decoder", "cross" → the map of the layers that were recorded. */
export function stackAttention(tape, config) {
  const found = new Map();
  for (const [key, stack, part] of PARTS) {
    const depth = stack === "encoder" ? config.encoder_depth : config.decoder_depth;
    const layers = Array.from({ length: depth }, (_, layer) => tape.get(`${stack}.blocks.${layer}.${part}.weights`));
    const recorded = layers.filter(Boolean);
    if (!recorded.length) continue;
    const size = recorded[0].data.length;
    const data = new Float32Array(recorded.length * size);
    recorded.forEach((one, at) => data.set(one.data, at * size));
    found.set(key, { shape: [recorded.length, ...recorded[0].shape], data });
  }
  return found;
}

/** The mean entropy in bits of each head: [L][H]. */
export function headEntropies({ shape, data }) {
  const [layers, heads, length, columns] = shape;
  const bits = (layer, head) => {
    const first = (layer * heads + head) * length;
    return mean(Array.from({ length }, (_, at) => entropy(data.subarray((first + at) * columns, (first + at + 1) * columns))));
  };
  return Array.from({ length: layers }, (_, layer) => Array.from({ length: heads }, (_, head) => bits(layer, head)));
}

/** The mean over the heads of one layer, or with layer = null over all layers and heads: [T, S]. */
export function meanMap({ shape, data }, layer = null) {
  const [layers, heads, length, columns] = shape;
  const size = length * columns;
  const [first, count] = layer === null ? [0, layers * heads] : [layer * heads, heads];
  const sums = new Float64Array(size);
  for (let one = first; one < first + count; one++) for (let at = 0; at < size; at++) sums[at] += data[one * size + at];
  return { shape: [length, columns], data: sums.map((sum) => sum / count) };
}

/** Rollouts [T, S] of the maps: { encoder, decoder, cross }, each only if there is one. */
export function rollOut(maps) {
  const encoder = maps.has("encoder") ? multiplyLayers(maps.get("encoder")) : null;
  if (!maps.has("decoder")) return { encoder };
  if (!encoder || !maps.has("cross")) return { decoder: multiplyLayers(maps.get("decoder")) };
  const [self, across] = [maps.get("decoder"), maps.get("cross")];
  const [layers, , length, columns] = across.shape;
  let own = identity(length);
  let source = { shape: [length, columns], data: new Float64Array(length * columns) };
  for (let layer = 0; layer < layers; layer++) {
    const residual = withResidual(self, layer);
    own = halve(multiply(residual, own));
    source = halve(multiply(residual, source));
    const added = multiply(meanMap(across, layer), encoder);
    source.data = source.data.map((share, at) => share + added.data[at] / 2);
  }
  return { encoder, decoder: own, cross: source };
}

function multiplyLayers(map) {
  let rolled = identity(map.shape[2]);
  for (let layer = 0; layer < map.shape[0]; layer++) rolled = multiply(withResidual(map, layer), rolled);
  return rolled;
}

/** ½ (Ā + I) of one layer. */
function withResidual(map, layer) {
  const average = meanMap(map, layer);
  for (let at = 0; at < average.shape[0]; at++) average.data[at * average.shape[1] + at] += 1;
  return halve(average);
}

function identity(size) {
  const data = new Float64Array(size * size);
  for (let at = 0; at < size; at++) data[at * size + at] = 1;
  return { shape: [size, size], data };
}

const halve = ({ shape, data }) => ({ shape, data: data.map((value) => value / 2) });

/** A B for [T, N] and [N, S]. */
function multiply(a, b) {
  const [length, inner] = a.shape;
  const columns = b.shape[1];
  const data = new Float64Array(length * columns);
  for (let row = 0; row < length; row++)
    for (let k = 0; k < inner; k++) {
      const factor = a.data[row * inner + k];
      for (let column = 0; column < columns; column++) data[row * columns + column] += factor * b.data[k * columns + column];
    }
  return { shape: [length, columns], data };
}

/** A map for a response: 16-bit numbers in base64, where 65535 is a weight of 1, and a bit for each NaN. */
export function packMap({ key, weights, rows, columns }, firstLayer) {
  const [layers, heads] = weights.shape;
  const packed = packWeights(weights.data);
  return { key, first_layer: firstLayer, layers, heads, rows, columns, weights: packed, nan: nanBitmap(weights.data) };
}

function packWeights(weights) {
  const integers = new Uint16Array(weights.length);
  for (let at = 0; at < weights.length; at++) integers[at] = Math.round(Math.min(1, Math.max(0, weights[at] || 0)) * MAX_UINT16);
  return base64(new Uint8Array(integers.buffer));
}

/** Which weights are NaN: one bit each, lowest first, in base64; null without NaN. */
function nanBitmap(weights) {
  if (!weights.some(Number.isNaN)) return null;
  const bits = new Uint8Array(Math.ceil(weights.length / 8));
  weights.forEach((weight, at) => (bits[at >> 3] |= Number(Number.isNaN(weight)) << (at & 7)));
  return base64(bits);
}

