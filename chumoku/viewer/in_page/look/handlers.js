// What the view Look asks of a model: functions from a request to the server's JSON.
//
//   look          tokens, maps, entropy, streams, lens, words, positions
//   tokens        the tokens of the texts                     addresses      all recordable tensors
//   tensor        the first 64 × 64 numbers at an address     nextTokens     the most likely next tokens, with logits
//   block         one head's computation at one position
//
// Each calls `check` before every generated token, block and layer of the lens; it may throw to stop the request.
import { RequestError } from "../errors.js";
import { traceBlock } from "./block.js";
import { checkHead, checkLayer, predictsTokens } from "./checks.js";
import { lastLogits } from "./generation.js";
import { jsonNumber, jsonNumbers, logSumExp, norm, rows, topIndices } from "./numbers.js";
import { generatedText, longest, MAX_TOKENS_ONE_LAYER, promptFromRequest, sourceTokens } from "./prompt.js";
import { Block, checkRequest, Look, Next, PromptRequest, Tensor } from "./schemas.js";
import { takeSnapshot } from "./snapshot.js";
import { readTable } from "./tensor_table.js";

const SHOWN = 64; // values of a vector, rows and columns of a table
const NORMS = { input: "input", attention: "output", feedforward: "feedforward", out: "out" };

/** Everything that the page draws for one prompt. */
export async function look(runtime, body, check) {
  const request = checkRequest(runtime, Look, body);
  const { config } = runtime.model;
  const { layer } = request;
  if (layer !== null) checkLayer(config, layer);
  const most = layer === null ? longest(config) : longest(config, MAX_TOKENS_ONE_LAYER, 1);
  const { prompt, notices } = await promptFromRequest(runtime, request, check, { most });
  const data = await takeSnapshot(runtime.model, prompt, { layer, lens: request.lens, check });
  const maps = data.maps.filter((one) => request.maps === null || request.maps.includes(one.key));
  const output = generatedText(runtime.tokenizer, prompt);
  return { model: request.model, text: request.text, output, notices, ...data, maps };
}

/** Tokens of the text and of its continuation, without running the model. */
export async function tokens(runtime, body, check) {
  const request = { ...checkRequest(runtime, PromptRequest, body), new: 0 };
  const { tokenizer, sourceTokenizer, model } = runtime;
  const most = Math.min(MAX_TOKENS_ONE_LAYER, model.config.context);
  if (model.kind !== "encoder-decoder") {
    const { prompt, notices } = await promptFromRequest(runtime, request, check, { most });
    return { tokens: tokenizer.labelTokens(prompt.tokens), source: [], notices };
  }
  const notices = [];
  const source = sourceTokenizer.labelTokens(sourceTokens(runtime, request.text, most, notices));
  const target = request.target === null ? [] : (await promptFromRequest(runtime, request, check, { most })).prompt.tokens.slice(1);
  return { tokens: tokenizer.labelTokens(target), source, notices };
}

export async function addresses(runtime, body) {
  checkRequest(runtime, PromptRequest, body);
  return { addresses: runtime.model.addresses() };
}

/** The first numbers of the tensor at an address, its shape and statistics. */
export async function tensor(runtime, body, check) {
  const request = checkRequest(runtime, Tensor, body);
  const { address, row: only, head } = request;
  const { prompt, notices } = await promptFromRequest(runtime, request, check);
  const found = await readTable(runtime.model, prompt, address, head, check);
  let [lines, labels] = [rows(found.table), found.rows];
  if (only !== null) {
    if (only >= lines.length) throw new RequestError(`There is no row ${only} at ${address}: it has ${lines.length} rows.`);
    [lines, labels] = [[lines[only]], labels && [labels[only]]];
  }
  return {
    address,
    shape: found.shape,
    shown: lines.slice(0, SHOWN).map((line) => jsonNumbers(line.slice(0, SHOWN))),
    rows: labels && labels.slice(0, SHOWN),
    columns: found.columns && found.columns.slice(0, SHOWN),
    ...statistics(lines),
    notices,
  };
}

/** Statistics of the finite numbers, and how many others there are. */
function statistics(lines) {
  let [least, most, sum, count, total] = [Infinity, -Infinity, 0, 0, 0];
  for (const line of lines) {
    total += line.length;
    for (const value of line) {
      if (!Number.isFinite(value)) continue;
      if (value < least) least = value;
      if (value > most) most = value;
      sum += value;
      count++;
    }
  }
  const found = count ? [least, most, sum / count] : [NaN, NaN, NaN];
  return { least: jsonNumber(found[0]), most: jsonNumber(found[1]), mean: jsonNumber(found[2]), odd: total - count };
}

/** The most likely next tokens; `rest` is log Σ exp of the logits of all others. */
export async function nextTokens(runtime, body, check) {
  const request = checkRequest(runtime, Next, body);
  const { model } = runtime;
  const wanted = request.target === null ? { ...request, new: 0 } : request;
  const most = Math.min(MAX_TOKENS_ONE_LAYER, model.config.context);
  const { prompt, notices } = await promptFromRequest(runtime, wanted, check, { most });
  if (model.kind === "encoder" || !predictsTokens(model.config)) {
    const head = model.config.labels === null ? "" : ` with the head '${model.config.head}'`;
    throw new RequestError(`A model of kind '${model.kind}'${head} predicts no next token. Use a decoder or an encoder-decoder.`);
  }
  const logits = await lastLogits(runtime, prompt, check);
  const best = topIndices(logits, request.count);
  const isBest = new Set(best);
  return {
    candidates: best.map((id) => ({ id, text: prompt.name(id), logit: jsonNumber(logits[id]) })),
    rest: jsonNumber(logSumExp(logits.filter((_, id) => !isBest.has(id)))),
    vocabulary: logits.length,
    notices,
  };
}

/** Everything that one block computes at one position. */
export async function block(runtime, body, check) {
  const request = checkRequest(runtime, Block, body);
  const { model, tokenizer, sourceTokenizer } = runtime;
  const { part } = request;
  checkLayer(model.config, request.layer, part);
  checkHead(model.config, request.head);
  const { prompt, notices } = await promptFromRequest(runtime, request, check);
  const trace = await traceBlock(model, prompt, request, check);
  const source = sourceTokenizer.labelTokens(prompt.source ?? []);
  const shown = (vector) => vector && jsonNumbers(vector.slice(0, SHOWN));
  const stream = Object.fromEntries(Object.entries(trace.stream).map(([name, vector]) => [name, shown(vector)]));
  return {
    tokens: source.length && part === "encoder" ? source : tokenizer.labelTokens(prompt.tokens),
    embedding: { token: shown(trace.embedding), position: shown(trace.position) },
    ...stream,
    ...describeHead(trace.attention),
    cross: trace.cross && { tokens: source, ...describeHead(trace.cross) },
    norms: Object.fromEntries(Object.entries(NORMS).map(([key, name]) => [key, jsonNumber(norm(trace.stream[name]))])),
    config: describeConfig(model.config),
    notices,
  };
}

function describeHead({ keys, values, masked, bias, ...vectors }) {
  const numbers = Object.fromEntries(Object.entries(vectors).map(([name, vector]) => [name, jsonNumbers(vector)]));
  const table = (lines) => lines.map((line) => jsonNumbers(line));
  return { ...numbers, keys: table(keys), values: table(values), bias: bias && jsonNumbers(bias), masked };
}

function describeConfig(config) {
  const names = ["norm", "feedforward", "position", "heads", "key_heads", "width", "hidden", "kind", "layers"];
  return {
    ...Object.fromEntries(names.map((name) => [name, config[name]])),
    head_width: config.key_width,
    norm_place: config.placement,
    scale_embedding: config.scale_embedding,
    experts: config.experts,
    base: config.rotary.base,
  };
}
