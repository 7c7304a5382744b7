// Edits of a forward pass, and how much they change the output.
//
//   switchOff     zeros instead of heads or outputs          copyPlaces    positions of another run, for texts of any length
//   effect        KL(before ‖ after) = Σ p log₂(p / q) at each position, in bits; for vectors 1 − cos
import { RequestError } from "../errors.js";
import { dot, logSumExp, norm, row, rows, slice } from "./numbers.js";

const BY_HEAD = ["heads", "weights", "values"]; // tensors with a matrix for each head

const nameOf = (address) => address.split(".").at(-1);
const pathOf = (address) => address.split(".").slice(0, -1).join(".");

/** Edits that set tensors to zero: parts is a map of address → its heads, or null for the whole tensor. */
export function switchOff(parts) {
  return new Map([...parts].map(([address, heads]) => [address, (tensor) => withZeros(tensor, heads)]));
}

function withZeros({ shape, data }, heads) {
  if (heads === null) return { shape, data: new Float32Array(data.length) };
  const changed = { shape, data: data.slice() };
  for (const head of heads) row(changed, head).fill(0);
  return changed;
}

/** Edits that replace single positions by those of another run: replacements are { address, place, otherPlace, head }. */
export function copyPlaces(replacements, tape, config) {
  const addresses = new Set(replacements.map((one) => one.address));
  for (const address of addresses) checkEditable(config, address);
  const some = (address) => replacements.filter((one) => one.address === address);
  return new Map([...addresses].map((address) => [address, (tensor) => withPlaces(tensor, tape.get(address), some(address))]));
}

function withPlaces(tensor, other, replacements) {
  const changed = { shape: tensor.shape, data: tensor.data.slice() };
  for (const { address, place, otherPlace, head } of replacements) {
    const byHead = BY_HEAD.includes(nameOf(address));
    if (head !== null && !byHead) throw new RequestError(`${address} has no heads to choose from. Attention heads are at …attention.heads.`);
    checkIndex("position", place, tensor, byHead ? 1 : 0, address);
    checkIndex("position", otherPlace, other, byHead ? 1 : 0, address);
    if (head !== null) checkIndex("head", head, tensor, 0, address);
    if (tensor.shape.at(-1) !== other.shape.at(-1)) throw wrongShape(address, tensor, other);
    const pairs = byHead ? heads(tensor, head).map((at) => [slice(changed, at), slice(other, at)]) : [[changed, other]];
    for (const [to, from] of pairs) row(to, place).set(row(from, otherPlace));
  }
  return changed;
}

const heads = ({ shape }, head) => (head === null ? Array.from({ length: shape[0] }, (_, at) => at) : [head]);

function checkIndex(kind, index, { shape }, axis, address) {
  const size = shape.length > 1 ? shape[axis] : 0;
  if (index >= size) throw new RequestError(`There is no ${kind} ${index} at ${address}: it has ${size}, numbered from 0.`);
}

function wrongShape(address, tensor, other) {
  const [here, there] = [tensor, other].map(({ shape }) => `[${[1, ...shape].join(", ")}]`);
  return new RequestError(
    `The tensor at ${address} has shape ${here}, but the replacement has ${there}. ` +
      "Record the replacement from a text with the same number of tokens.",
  );
}

function checkEditable(config, address) {
  const refuse = (reason, instead) => {
    throw new RequestError(`${address} can be recorded but not replaced: ${reason}. Replace ${pathOf(address)}${instead} instead.`);
  };
  const [module, name] = [nameOf(pathOf(address)), nameOf(address)];
  if (module.endsWith("attention") && ["queries", "keys", "scores", "masked_scores"].includes(name))
    refuse("the fused kernel has already used it", ".weights, .values, .heads or .output");
  if (config.experts && module === "feedforward" && name !== "output") refuse("the experts have already used it", ".output");
}

/** The output of the model as it is, and with these edits: { before, after }. */
export async function compareEdited(model, edits, { tokens, source }, check) {
  const { output: before } = await model.forward({ tokens, source, check });
  const { output: after } = await model.forward({ tokens, source, edits, check });
  return { before, after };
}

/** The effect at each position of logits [T, V], in bits. */
export function effectsInBits({ before, after }) {
  return rows(before).map((logits, place) => divergence(logits, row(after, place)));
}

function divergence(before, after) {
  const [p, q] = [logSumExp(before), logSumExp(after)];
  let nats = 0;
  for (let at = 0; at < before.length; at++) {
    const logProbability = before[at] - p;
    nats += Math.exp(logProbability) * (logProbability - (after[at] - q));
  }
  return Math.max(0, nats) / Math.LN2;
}

/** 1 − cos of two vectors. */
export function cosineDistance({ before, after }) {
  return 1 - dot(before.data, after.data) / (norm(before.data) * norm(after.data));
}
