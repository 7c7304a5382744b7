// The bytes of a model → its config, tensors and tokenizers; chumoku/web/container.py writes them.
//
//   "CHMK" · u32 length of the header · header (UTF-8 JSON) · tensors, each at a multiple of 64 bytes; little-endian
//
//   float32   { kind, shape, data: Float32Array }
//   int8      { kind, shape: [N, K], groups: ⌈K/32⌉, q: Int8Array [N, groups · 32], scale: Float32Array [N, groups] }
//
// Tensors are views of the bytes; nothing is copied but scales, which are float16 in the file.

export const GROUP = 32;
const MAGIC = "CHMK";
const FORMAT = 1;
const ALIGNMENT = 64;
const MAX_DIMENSIONS = 4;
const MAX_TENSORS = 1 << 17;

export class ContainerError extends Error {
  constructor(detail) {
    super(`This file is damaged or incomplete: ${detail}.`);
    this.name = "ContainerError";
  }
}

/** bytes: an ArrayBuffer or SharedArrayBuffer. */
export class Container {
  constructor(bytes) {
    this.bytes = bytes;
    this.header = readHeader(bytes);
    for (const key of ["name", "config", "precision", "tokenizer", "generation", "checks"]) this[key] = this.header[key];
    this.sourceTokenizer = this.header.source_tokenizer;
    this.entries = new Map(Object.entries(this.header.tensors));
    if (this.entries.size > MAX_TENSORS) throw new ContainerError("it has too many tensors");
    for (const [name, entry] of this.entries) checkEntry(name, entry, bytes.byteLength);
    this.opened = new Map();
  }

  has(name) {
    return this.entries.has(name);
  }

  /** One tensor, which must have this shape, if one is given. */
  tensor(name, shape = null) {
    const entry = this.entries.get(name);
    if (entry === undefined) throw new ContainerError(`it has no tensor ${name}`);
    if (shape !== null && (shape.length !== entry.shape.length || shape.some((size, axis) => size !== entry.shape[axis]))) {
      throw new ContainerError(`the tensor ${name} has the shape [${entry.shape}], not [${shape}]`);
    }
    if (!this.opened.has(name)) this.opened.set(name, openTensor(this.bytes, entry));
    return this.opened.get(name);
  }

  /** The tensor, or null if there is none. */
  optional(name, shape = null) {
    return this.has(name) ? this.tensor(name, shape) : null;
  }
}

function readHeader(bytes) {
  if (bytes.byteLength < 8) throw new ContainerError("it is too short");
  const view = new DataView(bytes);
  const magic = String.fromCharCode(...[0, 1, 2, 3].map((at) => view.getUint8(at)));
  if (magic !== MAGIC) throw new ContainerError("it is not a model");
  const length = view.getUint32(4, true);
  if (8 + length > bytes.byteLength) throw new ContainerError("it ends inside its header");
  const header = parseHeader(new Uint8Array(bytes, 8, length).slice());
  if (!isObject(header) || !isObject(header.config) || !isObject(header.tensors)) throw new ContainerError("its header has no model");
  if (header.format !== FORMAT) throw new ContainerError(`its format is not ${FORMAT}`);
  return header;
}

function parseHeader(text) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
  } catch {
    throw new ContainerError("its header is not JSON");
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const groupsOf = (inputs) => Math.ceil(inputs / GROUP);

function checkEntry(name, entry, end) {
  const refuse = (what) => {
    throw new ContainerError(`the tensor ${name.slice(0, 200)} ${what}`);
  };
  if (!isObject(entry) || !Array.isArray(entry.shape)) refuse("has no shape");
  const { kind, shape } = entry;
  if (shape.length > MAX_DIMENSIONS || !shape.every((size) => Number.isSafeInteger(size) && size >= 1 && size <= end)) refuse("has a wrong shape");
  const check = (at, size) => {
    if (!Number.isSafeInteger(at) || at < 0 || at % ALIGNMENT !== 0 || !(at + size <= end)) refuse("is not inside the file");
  };
  if (kind === "float32") {
    check(entry.at, 4 * shape.reduce((product, size) => product * size, 1));
  } else if (kind === "int8" && shape.length === 2) {
    const groups = shape[0] * groupsOf(shape[1]);
    check(entry.at, groups * GROUP);
    check(entry.scale_at, groups * 2);
  } else {
    refuse("is of an unknown kind");
  }
}

function openTensor(bytes, { kind, shape, at, scale_at: scaleAt }) {
  if (kind === "float32") {
    return { kind, shape, data: new Float32Array(bytes, at, shape.reduce((product, size) => product * size, 1)) };
  }
  const groups = groupsOf(shape[1]);
  const scale = halvesToFloats(new Uint16Array(bytes, scaleAt, shape[0] * groups));
  return { kind, shape, groups, q: new Int8Array(bytes, at, shape[0] * groups * GROUP), scale };
}

const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => halfToFloat(bits));

function halvesToFloats(halves) {
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) floats[i] = HALVES[halves[i]];
  return floats;
}

/** The number of a float16's bits: sign · 2^(exponent − 15) · (1 + fraction / 1024). */
export function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
