// One position in one block, with one attention head: all intermediate values of the formula.
//
//   scores   s_j = q · k_j                 scaled    s_j / √K (+ position bias)
//   weights  softmax over visible j        context   Σ_j weights_j v_j
//
// Queries, keys and values are recorded in the forward pass. The rest is computed again from them in double precision.
import { RequestError } from "../errors.js";
import { dot, row, rows, slice, softmax } from "./numbers.js";

const SCORE_POSITIONS = ["relative", "relative_bias", "alibi"]; // positions that are added to the attention scores

/** → { embedding, position, stream, attention, cross }: vectors; `position` and `cross` may be null. */
export async function traceBlock(model, { tokens, source }, { part, layer, head, place }, check) {
  const ids = source && part === "encoder" ? source : tokens;
  if (place >= ids.length) throw new RequestError(`There is no place ${place}: the text has ${ids.length} tokens, numbered from 0.`);
  const here = `${part}.blocks.${layer}`;
  const before = layer ? `${part}.blocks.${layer - 1}.output` : `${part}.embedding`;
  const others = [before, `${part}.token_embedding`, `${part}.position`];
  const record = (address) => address.startsWith(`${here}.`) || others.includes(address);
  const { tape } = await model.forward({ tokens, source, record, check });
  const vector = (address) => (tape.has(address) ? row(tape.get(address), place) : null);
  const cross = `${here}.cross_attention`;
  return {
    embedding: vector(`${part}.token_embedding`),
    position: vector(`${part}.position`),
    stream: residualStream(vector, here, before),
    attention: traceHead(model.config, tape, `${here}.attention`, head, place),
    cross: tape.has(`${cross}.queries`) ? traceHead(model.config, tape, cross, head, place) : null,
  };
}

/** Vectors of one position after each part of the block; `output` is what attention adds. */
function residualStream(vector, here, before) {
  const parts = {
    input: before,
    norm1: `${here}.attention_norm`,
    output: `${here}.attention.output`,
    after_attention: `${here}.after_attention`,
    cross_norm: `${here}.cross_attention_norm`,
    cross_output: `${here}.cross_attention.output`,
    after_cross: `${here}.after_cross_attention`,
    norm2: vector(`${here}.feedforward_norm`) ? `${here}.feedforward_norm` : `${here}.attention_norm`, // shared
    hidden: `${here}.feedforward.hidden`,
    feedforward: `${here}.feedforward.output`,
    out: `${here}.output`,
  };
  const found = Object.entries(parts).map(([name, address]) => [name, vector(address)]);
  return Object.fromEntries(found.filter(([, values]) => values));
}

/** softmax(q Kᵀ / √K) V for one query. */
function traceHead(config, tape, here, head, place) {
  const keyHead = Math.floor((head * config.key_heads) / config.heads);
  const at = (name) => row(slice(tape.get(`${here}.${name}`), head), place);
  const [keys, values] = ["keys", "values"].map((name) => rows(slice(tape.get(`${here}.${name}`), keyHead)));
  const [query, recorded, hidden] = [at("queries"), at("scores"), at("masked_scores")];
  const scores = keys.map((key) => dot(key, query));
  const scaled = scores.map((score) => score / Math.sqrt(config.key_width));
  const hasBias = SCORE_POSITIONS.includes(config.position) && !here.endsWith("cross_attention");
  const bias = hasBias || config.score_cap !== null ? scaled.map((score, j) => recorded[j] - score) : null;
  const masked = Array.from(recorded, (score, j) => hidden[j] !== score);
  const visible = scaled.map((score, j) => (masked[j] ? -Infinity : score + (bias ? bias[j] : 0)));
  const weights = softmax(visible);
  const context = Array.from(query, (_, k) => values.reduce((sum, value, j) => sum + weights[j] * value[k], 0));
  return { query, keys, values, scores, scaled, weights, bias, masked, context };
}
