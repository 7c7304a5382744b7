// Taps: record or replace tensors inside a model by their addresses, as chumoku/nn/tap.py does.
//
//   tape.tap(address, tensor) → the tensor, or its replacement; what is recorded is the replaced tensor
//   tape.wants(address)       check it before computing a tensor only for its tap
//
// A tensor is { shape, data: Float32Array }; without a batch dimension, because a recorded pass has one sequence.
import { RequestError } from "../errors.js";

export class Tape {
  constructor(record = () => false, edits = new Map()) {
    this.record = record;
    this.edits = edits;
    this.tensors = new Map();
  }

  wants(address) {
    return this.edits.has(address) || this.record(address);
  }

  tap(address, tensor) {
    if (this.edits.has(address)) tensor = replace(address, tensor, this.edits.get(address));
    if (this.record(address)) this.tensors.set(address, tensor);
    return tensor;
  }

  /** Tap rows [T, D] that are given as their numbers. */
  tapRows(address, data, width) {
    return this.wants(address) ? this.tap(address, { shape: [data.length / width, width], data }).data : data;
  }
}

/** A tape that nothing is recorded on. */
export const NO_TAPE = new Tape();

function replace(address, tensor, change) {
  const changed = change(tensor);
  const size = tensor.data.length;
  if (changed?.data?.length !== size || String(changed.shape) !== String(tensor.shape)) {
    throw new RequestError(`The tensor at ${address} has shape [${tensor.shape}], but the replacement has [${changed?.shape}].`);
  }
  return changed;
}

const ATTENTION_INSIDE = ["queries", "keys", "scores", "masked_scores"];
const EXPERTS_INSIDE = ["router", "chosen", "pre_activation", "hidden"];

/** Raise for edits of addresses that do not exist, or whose tensors can be recorded but not replaced. */
export function checkEdits(edits, addresses, hasExperts) {
  for (const address of edits.keys()) {
    if (!addresses.includes(address)) throw new RequestError(`No address of this model matches ${String(address).slice(0, 200)}.`);
    const parts = address.split(".");
    const [module, name] = [parts.at(-2) ?? "", parts.at(-1)];
    const path = parts.slice(0, -1).join(".");
    if (module.endsWith("attention") && ATTENTION_INSIDE.includes(name)) {
      throw new RequestError(`${address} can be recorded but not replaced. Replace ${path}.weights, .values, .heads or .output instead.`);
    }
    if (hasExperts && module === "feedforward" && EXPERTS_INSIDE.includes(name)) {
      throw new RequestError(`${address} can be recorded but not replaced. Replace ${path}.output instead.`);
    }
  }
}
