// Numbers as colors: the canvas that all views share.
//
//   shares      0 … 1            paper → accent, evenly to the eye              attention weights
//   signed      −m … m           warm → card → accent                           vectors
//   no number   hatched, in the color of warnings                              NaN
//
//   paint(canvas, table)         table = { values, rows, columns, at?, odd?, scale?, signed?, most? }
//
// One pixel a cell (or a square of `scale` pixels), so that CSS may make it any size without a second drawing.

const STEPS = 256;
const cache = new Map();

/** Colors of the theme as 32-bit words for ImageData, little end first; made once a theme. */
export function palette(signed = false) {
  const key = `${document.documentElement.dataset.theme ?? ""}|${signed}`;
  if (!cache.has(key)) cache.set(key, made(signed));
  return cache.get(key);
}

function made(signed) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => rgb(style.getPropertyValue(name).trim());
  const [card, accent, warm, red] = ["--card", "--accent", "--warm", "--red"].map(color);
  const words = new Uint32Array(STEPS + 2);
  for (let step = 0; step < STEPS; step++) {
    const share = step / (STEPS - 1);
    // A root for shares: small weights differ visibly from none.
    words[step] = signed ? word(mix(card, share < 0.5 ? warm : accent, Math.abs(2 * share - 1))) : word(mix(card, accent, Math.sqrt(share)));
  }
  words[STEPS] = word(red);
  words[STEPS + 1] = word(card);
  return words;
}

function rgb(text) {
  const whole = Number.parseInt(text.replace("#", ""), 16);
  return [(whole >> 16) & 255, (whole >> 8) & 255, whole & 255];
}

const mix = (a, b, share) => a.map((one, at) => one + (b[at] - one) * share);
const word = ([r, g, b]) => ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;

/** Draw a table of numbers. 16-bit ones are shares of 65535. */
export function paint(canvas, { values, rows, columns, at = 0, odd = null, scale = 1, signed = false, most = null }) {
  const colors = palette(signed);
  const width = columns * scale;
  canvas.width = width;
  canvas.height = rows * scale;
  if (!width || !canvas.height) return;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, canvas.height);
  const words = new Uint32Array(image.data.buffer);
  const full = values instanceof Uint16Array ? 65535 : (most ?? largest(values, at, rows * columns)) || 1;
  const half = signed ? (STEPS - 1) / 2 : 0;
  const factor = signed ? half / full : (STEPS - 1) / full;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const index = at + row * columns + column;
      const value = values[index];
      const none = odd ? odd[index >> 3] & (1 << (index & 7)) : Number.isNaN(value);
      const step = none ? -1 : Math.min(STEPS - 1, Math.max(0, Math.round(half + value * factor)));
      if (scale === 1) words[row * width + column] = none ? colors[STEPS + ((row + column) & 1)] : colors[step];
      else fill(words, width, row * scale, column * scale, scale, step, colors);
    }
  }
  pen.putImageData(image, 0, 0);
}

function fill(words, width, top, left, scale, step, colors) {
  for (let y = top; y < top + scale; y++)
    for (let x = left; x < left + scale; x++) words[y * width + x] = step < 0 ? colors[STEPS + (((x + y) >> 1) & 1)] : colors[step];
}

/** The largest |number|, of those that are numbers. */
export function largest(values, at = 0, count = values.length) {
  let most = 0;
  for (let index = at; index < at + count; index++) {
    const size = Math.abs(values[index]);
    if (size > most && size !== Infinity) most = size;
  }
  return most;
}

/** Base64 as bytes. */
export function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) found[at] = letters.charCodeAt(at);
  return found;
}

/** A map as it came by HTTP, with its numbers unpacked when first asked for. */
export function opened(map) {
  let values = null;
  let odd = null;
  const [rows, columns] = [map.rows.length, map.columns.length];
  const open = () => {
    if (values) return;
    const raw = bytes(map.weights);
    values = new Uint16Array(raw.buffer, raw.byteOffset, raw.byteLength >> 1);
    odd = map.nan ? bytes(map.nan) : null;
  };
  return {
    ...map,
    layers: map.layers ?? 1,
    heads: map.heads ?? 1,
    /** What `paint` wants, of one head. */
    table(layer, head) {
      open();
      return { values, odd, rows, columns, at: (layer * (map.heads ?? 1) + head) * rows * columns };
    },
    /** One weight; NaN where there is none. */
    weight(layer, head, row, column) {
      open();
      const index = (layer * (map.heads ?? 1) + head) * rows * columns + row * columns + column;
      return odd && odd[index >> 3] & (1 << (index & 7)) ? NaN : values[index] / 65535;
    },
  };
}
