// The tensor at an address as a table with token names.
import { didYouMean } from "../did_you_mean.js";
import { RequestError } from "../errors.js";
import { checkHead } from "./checks.js";
import { slice } from "./numbers.js";

export function checkAddress(model, address) {
  const known = model.addresses();
  if (known.includes(address)) return;
  const hint = didYouMean(address, known, `It has ${known.length} addresses.`, 0.3);
  throw new RequestError(`This model has no address ${address}. ${hint}`);
}

/** → { shape, table [N, M], rows, columns }; of tensors with a matrix for each head, the matrix of one head. */
export async function readTable(model, prompt, address, head, check) {
  checkAddress(model, address);
  const { tokens, source } = prompt;
  const { tape } = await model.forward({ tokens, source, record: (one) => one === address, check });
  const tensor = tape.get(address);
  if (!tensor) throw new RequestError(`The forward pass of this prompt did not reach ${address}.`);
  const labels = tensor.shape.length === 1 ? { rows: null, columns: null } : axisLabels(address, prompt); // one vector for the text
  return { shape: tensor.shape, table: toMatrix(model.config, tensor, address, head), ...labels };
}

/** A tensor of one to three axes as a matrix; with three axes, the matrix of the head. */
function toMatrix(config, tensor, address, head) {
  const { shape, data } = tensor;
  if (shape.length === 1) return { shape: [1, ...shape], data };
  if (shape.length === 2) return tensor;
  if (!address.includes("attention.")) return { shape: [shape[0], data.length / shape[0]], data }; // of each chosen expert
  checkHead(config, head);
  return slice(tensor, Math.floor((head * shape[0]) / config.heads)); // several query heads may share a key head
}

/** Labels of the rows, and of the columns if they are tokens too. */
function axisLabels(address, { names, sourceNames }) {
  const queries = sourceNames.length && address.startsWith("encoder") ? sourceNames : names;
  const keys = address.includes("cross_attention") ? sourceNames : queries;
  const part = address.split(".").at(-1);
  const inAttention = address.includes("attention.");
  const ofKeys = inAttention && ["keys", "values"].includes(part);
  const overKeys = inAttention && ["scores", "masked_scores", "weights"].includes(part);
  return { rows: ofKeys ? keys : queries, columns: overKeys ? keys : null };
}
