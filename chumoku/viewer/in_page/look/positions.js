// The table of a model's positions.
//
//   learned, sinusoidal    the vector that is added at each position
//   rotary                 cos of each position's angles
//   alibi, relative_bias   the bias of each distance, for each head
//   relative               the learned vector of each distance
import { jsonNumbers, row, rows } from "./numbers.js";

const MAX_COLUMNS = 64;

/** → { kind, rows: labels, table: numbers or null } for a text of `length` tokens. */
export function positionTable({ config, container, last }, tape, length) {
  const labels = Array.from({ length }, (_, position) => String(position));
  const added = tape.get(`${last.path}.position`);
  if (added) return describe(config.position, rows(added), labels);
  if (last.rotary) return describe(config.position, cosines(last.rotary, length), labels);
  if (last.bias) {
    const heads = Array.from({ length: config.heads }, (_, head) => head);
    return describe(config.position, labels.map((_, distance) => heads.map((head) => last.bias.compute(distance, head))), labels);
  }
  if (config.position === "none") return describe(config.position, null, []);
  const table = rows(container.tensor(`${last.path}.blocks.0.attention.relative.table`));
  const clip = Math.floor(table.length / 2);
  return describe(config.position, table, table.map((_, at) => `${at < clip ? "" : "+"}${at - clip}`));
}

function cosines(rotary, length) {
  rotary.prepare(length);
  const table = { shape: [rotary.length, rotary.frequencies.length], data: rotary.cos };
  return Array.from({ length }, (_, position) => row(table, position));
}

function describe(kind, table, labels) {
  return { kind, rows: labels, table: table && table.map((line) => jsonNumbers(line.slice(0, MAX_COLUMNS), 3)) };
}
