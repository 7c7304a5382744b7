// Heatmaps: tables of numbers painted on a canvas.
//
//   weights     0 … 1            background → accent color, of √weight unless `linear`
//   signed      −m … m           warm → background → accent color               vectors
//   NaN         hatched, in the warning color
//
//   paint(canvas, table)         table = { values, rows, columns, at?, nans?, scale?, signed?, linear?, limit? }
//
// Each cell is one pixel (or a square of `scale` pixels), so that CSS can scale the canvas without repainting.

const STEPS = 256;
const cache = new Map();

/** The colors of the theme as little-endian 32-bit words for ImageData, cached per theme. */
function palette(signed, linear) {
  const key = `${document.documentElement.dataset.theme ?? ""}|${signed}|${linear}`;
  if (!cache.has(key)) cache.set(key, makePalette(signed, linear));
  return cache.get(key);
}

function makePalette(signed, linear) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => rgb(style.getPropertyValue(name).trim());
  const [card, accent, warm, red] = ["--card", "--accent", "--warm", "--red"].map(color);
  const words = new Uint32Array(STEPS + 2);
  for (let step = 0; step < STEPS; step++) {
    const share = step / (STEPS - 1);
    // The square root makes small weights visible.
    words[step] = signed ? word(mix(card, share < 0.5 ? warm : accent, Math.abs(2 * share - 1))) : word(mix(card, accent, linear ? share : Math.sqrt(share)));
  }
  words[STEPS] = word(red);
  words[STEPS + 1] = word(card);
  return words;
}

function rgb(text) {
  const value = Number.parseInt(text.replace("#", ""), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

const mix = (a, b, share) => a.map((one, at) => one + (b[at] - one) * share);
const word = ([r, g, b]) => ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;

/** Paint a table. 16-bit values are weights, where 65535 is 1; `nans`: one bit per value; `limit`: the value of full color. */
export function paint(canvas, { values, rows, columns, at = 0, nans = null, scale = 1, signed = false, linear = false, limit = null }) {
  const colors = palette(signed, linear);
  const width = columns * scale;
  canvas.width = width;
  canvas.height = rows * scale;
  if (!width || !canvas.height) return;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, canvas.height);
  const words = new Uint32Array(image.data.buffer);
  const full = values instanceof Uint16Array ? 65535 : (limit ?? maxAbs(values, at, rows * columns)) || 1;
  const half = signed ? (STEPS - 1) / 2 : 0;
  const factor = signed ? half / full : (STEPS - 1) / full;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const index = at + row * columns + column;
      const value = values[index];
      const isNaN = nans ? nans[index >> 3] & (1 << (index & 7)) : Number.isNaN(value);
      const step = isNaN ? -1 : Math.min(STEPS - 1, Math.max(0, Math.round(half + value * factor)));
      if (scale === 1) words[row * width + column] = isNaN ? colors[STEPS + ((row + column) & 1)] : colors[step];
      else fill(words, width, row * scale, column * scale, scale, step, colors);
    }
  }
  pen.putImageData(image, 0, 0);
}

function fill(words, width, top, left, scale, step, colors) {
  for (let y = top; y < top + scale; y++)
    for (let x = left; x < left + scale; x++) words[y * width + x] = step < 0 ? colors[STEPS + (((x + y) >> 1) & 1)] : colors[step];
}

/** The largest finite |value|. */
export function maxAbs(values, at = 0, count = values.length) {
  let largest = 0;
  for (let index = at; index < at + count; index++) {
    const size = Math.abs(values[index]);
    if (size > largest && size !== Infinity) largest = size;
  }
  return largest;
}

/** The bytes of a base64 string. */
export function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) found[at] = letters.charCodeAt(at);
  return found;
}

/** A map from the server's JSON; its numbers are unpacked when they are first needed. */
export function unpackMap(map) {
  let values = null;
  let nans = null;
  const [rows, columns] = [map.rows.length, map.columns.length];
  const unpack = () => {
    if (values) return;
    const raw = decodeBase64(map.weights);
    values = new Uint16Array(raw.buffer, raw.byteOffset, raw.byteLength >> 1);
    nans = map.nan ? decodeBase64(map.nan) : null;
  };
  const { layers = 1, heads = 1 } = map;
  /** The table of one head, for `paint`; null: the mean over all layers, over all heads. */
  const table = (layer, head) => {
    unpack();
    if (layer !== null && head !== null) return { values, nans, rows, columns, at: (layer * heads + head) * rows * columns };
    const tables = (layer === null ? range(layers) : [layer]).flatMap((one) => (head === null ? range(heads) : [head]).map((other) => table(one, other)));
    const mean = new Float32Array(rows * columns);
    for (const one of tables) for (let at = 0; at < mean.length; at++) mean[at] += weightAt(one, at) / tables.length;
    return { values: mean, nans: null, rows, columns, at: 0 };
  };
  return { ...map, layers, heads, table };
}

const range = (count) => Array.from({ length: count }, (_, at) => at);

/** One weight of a table of `unpackMap`, or NaN; cells are numbered row by row. */
export function weightAt({ values, nans, at }, cell) {
  const index = at + cell;
  if (nans && nans[index >> 3] & (1 << (index & 7))) return NaN;
  return values instanceof Uint16Array ? values[index] / 65535 : values[index];
}
