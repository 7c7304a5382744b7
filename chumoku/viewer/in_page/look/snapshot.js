// Everything that the page draws for one prompt, from one forward pass.
//
//   maps        attention weights [L, H, T, S] of "encoder", "decoder" (masked) and "cross"; rollouts [1, 1, T, S]
//   entropy     of every head [L, H], in bits
//   streams     minimum, median and maximum of ‖x‖ over the positions, by layer
//   lens        the prediction of each layer
//   words       for each generated token: the best candidates, and the positions with the most attention
//   positions   the position vectors
//
// Row i of a decoder's map is the attention with which the token after i was predicted.
import { headEntropies, meanMap, packMap, rollOut, stackAttention } from "./attention.js";
import { predictsTokens } from "./checks.js";
import { applyLens } from "./lens.js";
import { jsonNumber, jsonNumbers, norm, quantiles, row, rows, softmax, topIndices } from "./numbers.js";
import { positionTable } from "./positions.js";

export const TOP_CANDIDATES = 5;
const TOP_ATTENDED = 3;
const STREAM = /^(encoder|decoder)\.(embedding|position|blocks\.\d+\.(output|(attention|cross_attention|feedforward)\.output))$/;
const WEIGHTS = /^(?:encoder|decoder)\.blocks\.(\d+)\.(?:cross_)?attention\.weights$/;

/** layer: collect the attention of this layer only, without rollouts; lens: whether to compute the logit lens. */
export async function takeSnapshot(model, prompt, { layer, lens, check }) {
  const { config } = model;
  const { tokens, source, nextToken } = prompt;
  const isShown = (found) => found && (layer === null || Number(found[1]) === layer);
  const record = (address) => STREAM.test(address) || isShown(WEIGHTS.exec(address));
  const { output, tape } = await model.forward({ tokens, source, record, check });
  const weights = stackAttention(tape, config);
  const maps = [...weights].map(([key, map]) => nameMap(key, map, prompt));
  const all = [...maps, ...(layer === null ? rolloutMaps(weights, prompt) : [])];
  const logits = predictsTokens(config) ? output : null;
  return {
    kind: config.kind,
    tokens: tokens.map((token, place) => [token, prompt.names[place]]),
    source: (source ?? []).map((token, place) => [token, prompt.sourceNames[place]]),
    first: prompt.promptLength,
    then: nextToken === null ? null : { id: nextToken, text: prompt.name(nextToken) },
    maps: all.map((one) => packMap(one, layer ?? 0)),
    entropy: Object.fromEntries(maps.map((one) => [one.key, headEntropies(one.weights).map((bits) => jsonNumbers(bits, 4))])),
    streams: streamNorms(config, tape),
    lens: logits && lens ? await lensTable(model, tape, logits, prompt, check) : null,
    words: logits ? await predict(logits, maps, prompt, predictedPositions(config, prompt), check) : [],
    positions: positionTable(model, tape, tokens.length),
  };
}

/** The positions whose predictions are shown: an encoder's masks, or all from the end of the prompt. */
export function predictedPositions(config, { tokens, promptLength, masked }) {
  if (config.kind === "encoder") return masked;
  const first = Math.max(0, promptLength - 1);
  return Array.from({ length: tokens.length - first }, (_, at) => first + at);
}

/** The most likely tokens with their probabilities: [[token, probability]]. */
export function mostLikely(logits, count = TOP_CANDIDATES) {
  const shares = softmax(logits);
  return topIndices(shares, count).map((token) => [token, shares[token]]);
}

// ---- attention ----
/** A map with token names. Rows of cross-attention are named by the token that is predicted there. */
function nameMap(key, weights, { names, sourceNames, nextToken, name }) {
  if (key.endsWith("encoder") && sourceNames.length) return { key, weights, rows: sourceNames, columns: sourceNames };
  if (!key.endsWith("cross")) return { key, weights, rows: names, columns: names };
  const last = nextToken === null ? "…" : name(nextToken);
  return { key, weights, rows: [...names.slice(1), last], columns: sourceNames };
}

function rolloutMaps(weights, prompt) {
  const { encoder, decoder, cross } = rollOut(weights);
  const found = Object.entries({ "rollout-encoder": encoder, rollout: decoder, "rollout-cross": cross }).filter(([, one]) => one);
  return found.map(([key, { shape, data }]) => nameMap(key, { shape: [1, 1, ...shape], data }, prompt));
}

// ---- the residual stream ----
function streamNorms(config, tape) {
  const found = {};
  for (const [stack, depth] of [["encoder", config.encoder_depth], ["decoder", config.decoder_depth]]) {
    if (!depth) continue;
    const layers = Array.from({ length: depth }, (_, layer) => `${stack}.blocks.${layer}`);
    const spread = (addresses) => addresses.map((address) => jsonNumbers(quantiles(rows(tape.get(address)).map(norm)), 4));
    found[stack] = { x: spread([`${stack}.embedding`, ...layers.map((layer) => `${layer}.output`)]) };
    for (const [name, part] of [["attention", "attention"], ["feedforward", "feedforward"], ["cross", "cross_attention"]])
      if (tape.has(`${layers[0]}.${part}.output`)) found[stack][name] = spread(layers.map((layer) => `${layer}.${part}.output`));
  }
  return found;
}

// ---- predictions ----
const candidates = (likely, name) => likely.map(([token, probability]) => [name(token), jsonNumber(probability, 3)]);

async function lensTable(model, tape, output, { name }, check) {
  const layers = await applyLens(model, tape, output, (logits) => mostLikely(logits), check);
  return layers.map((places) => places.map((likely) => candidates(likely, name)));
}

/** The prediction at each of the positions, with the positions that it attended to most. */
async function predict(logits, maps, prompt, positions, check) {
  const attended = meanMap((maps.find((one) => one.key === "cross") ?? maps.at(-1)).weights);
  const { tokens, names, nextToken, name, masked } = prompt;
  const following = masked.length ? [] : [...tokens.slice(1), nextToken];
  const written = [...names.slice(1), nextToken === null ? null : name(nextToken)];
  const found = [];
  for (const place of positions) {
    await check();
    const token = following[place] ?? null;
    const shares = softmax(row(logits, place));
    const likely = topIndices(shares, TOP_CANDIDATES).map((one) => [one, shares[one]]);
    const weights = row(attended, place);
    const known = token === null ? [null, null, null] : [written[place], shares[token], rankOf(token, shares)];
    found.push({
      place,
      name: known[0],
      probability: known[1] === null || Number.isFinite(known[1]) ? known[1] : jsonNumber(known[1]),
      rank: known[2],
      candidates: candidates(likely, name),
      looked: topIndices(weights, TOP_ATTENDED).map((column) => [column, fourDecimals(weights[column])]),
    });
  }
  return found;
}

/** 1 for the most likely token. */
function rankOf(token, shares) {
  let rank = 1;
  for (let at = 0; at < shares.length; at++) if (shares[at] > shares[token]) rank++;
  return rank;
}

const fourDecimals = (weight) => (Number.isFinite(weight) ? Number(weight.toFixed(4)) : jsonNumber(weight));
