// Looks at a model that is changed: functions from a request to the server's JSON.
//
//   ablate    text and candidates with all parts, and with heads or feed-forwards switched off
//   effects   of every head of a layer, and of its feed-forward, when it alone is switched off
//   patch     candidates after a text, after another one, and after the text with tensors of the other one
import { RequestError } from "../errors.js";
import { checkHead, checkLayer, predictsTokens } from "./checks.js";
import { compareEdited, copyPlaces, cosineDistance, effectsInBits, switchOff } from "./edits.js";
import { jsonNumber, mean, row } from "./numbers.js";
import { generatedText, promptFromRequest } from "./prompt.js";
import { Ablate, checkRequest, Effects, Patch } from "./schemas.js";
import { mostLikely, predictedPositions } from "./snapshot.js";
import { checkAddress } from "./tensor_table.js";

/** Both models continue the same prompt; the bits are measured on the text that was generated before the ablation. */
export async function ablate(runtime, body, check) {
  const request = checkRequest(runtime, Ablate, body);
  const { model, tokenizer } = runtime;
  const edits = switchOff(findSwitchedOff(model.config, request.off));
  const { prompt, notices } = await promptFromRequest(runtime, request, check);
  const change = await compareEdited(model, edits, prompt, check);
  const { prompt: ablated } = await promptFromRequest(runtime, request, check, { edits });
  const [first] = predictedPlaces(model, prompt);
  const side = (output, one) => ({ output: generatedText(tokenizer, one), candidates: describeCandidates(model, output, first, prompt) });
  return { before: side(change.before, prompt), after: side(change.after, ablated), ...describeChange(model, change, prompt), notices };
}

/** A request is about one layer, so that the page can show its progress. */
export async function effects(runtime, body, check) {
  const request = checkRequest(runtime, Effects, body);
  const { model } = runtime;
  checkLayer(model.config, request.layer, request.part);
  const { prompt, notices } = await promptFromRequest(runtime, request, check);
  const { tokens, source } = prompt;
  const { output: before } = await model.forward({ tokens, source, check });
  const found = [];
  let measure;
  for (const part of switchableParts(model, request)) {
    const edits = switchOff(findSwitchedOff(model.config, [part]));
    const { output: after } = await model.forward({ tokens, source, edits, check });
    const described = describeChange(model, { before, after }, prompt);
    found.push({ part, effect: described.change });
    measure = described.measure;
  }
  found.sort((one, other) => Number(other.effect) - Number(one.effect));
  return { effects: found, measure, notices };
}

/** The heads and the feed-forward of a layer, as parts that can be switched off. */
function switchableParts(model, { part, layer }) {
  const known = new Set(model.addresses());
  const has = (name) => known.has(`${part}.blocks.${layer}.${name}`);
  const heads = (fields) => Array.from({ length: model.config.heads }, (_, head) => ({ part, layer, head, ...fields }));
  return [
    ...(has("attention.heads") ? heads({}) : []),
    ...(has("cross_attention.heads") ? heads({ cross: true }) : []),
    ...(has("feedforward.output") ? [{ part, layer, feedforward: true }] : []),
  ];
}

/** Both texts have the same continuation, that of the first one. The candidates are those at the place where the
    prediction changes most. */
export async function patch(runtime, body, check) {
  const request = checkRequest(runtime, Patch, body);
  const { model } = runtime;
  for (const { address } of request.replace) checkAddress(model, address);
  const { prompt, notices } = await promptFromRequest(runtime, request, check);
  const target = model.kind === "encoder" ? null : prompt.tokens.slice(prompt.promptLength);
  const { prompt: other, notices: more } = await promptFromRequest(runtime, { ...request, text: request.other, target }, check);
  const wanted = request.replace.map(({ address, place, other_place: otherPlace, head }) => {
    return { address, place, otherPlace: otherPlace ?? place, head: head ?? null };
  });
  const record = (address) => wanted.some((one) => one.address === address);
  const { output, tape } = await model.forward({ tokens: other.tokens, source: other.source, record, check });
  const change = await compareEdited(model, copyPlaces(wanted, tape, model.config), prompt, check);
  const described = describeChange(model, change, prompt);
  const [places, otherPlaces] = [prompt, other].map((one) => predictedPlaces(model, one));
  const nth = largestIndex(described.places.map(({ bits }) => Number(bits)));
  const side = (logits, place, one) => ({ candidates: describeCandidates(model, logits, place, one) });
  const known = notices.map(String);
  return {
    place: places[nth],
    before: side(change.before, places[nth], prompt),
    after: side(change.after, places[nth], prompt),
    other: side(output, otherPlaces[Math.min(nth, otherPlaces.length - 1)], other),
    ...described,
    notices: [...notices, ...more.filter((one) => !known.includes(String(one)))],
  };
}

/** Address → heads to switch off, or null for the whole output at this address. */
function findSwitchedOff(config, off) {
  const found = new Map();
  for (const { part, layer, head = null, cross = false, feedforward = false } of off) {
    checkLayer(config, layer, part);
    if (feedforward === (head !== null) || (feedforward && cross))
      throw new RequestError("Each entry of 'off' must have either 'head' (optionally with 'cross') or 'feedforward'.");
    if (cross && (part !== "decoder" || config.kind !== "encoder-decoder"))
      throw new RequestError(`The ${part} of a model of kind '${config.kind}' has no cross-attention.`);
    const address = `${part}.blocks.${layer}`;
    if (feedforward) {
      found.set(`${address}.feedforward.output`, null);
      continue;
    }
    checkHead(config, head);
    const heads = `${address}.${cross ? "cross_attention" : "attention"}.heads`;
    found.set(heads, [...(found.get(heads) ?? []), head]);
  }
  return found;
}

function predictedPlaces(model, prompt) {
  const places = predictedPositions(model.config, prompt);
  return places.length ? places : [0];
}

/** The mean effect, and that at each predicted position: in bits, for vectors 1 − cos. */
function describeChange(model, change, prompt) {
  const places = predictedPlaces(model, prompt);
  const byPlace = change.before.shape.length === 2;
  const all = byPlace ? effectsInBits(change) : [cosineDistance(change)];
  const effects = byPlace ? places.map((place) => all[place]) : all;
  return {
    change: jsonNumber(mean(effects)),
    places: effects.map((bits, at) => ({ place: places[at], bits: jsonNumber(bits) })),
    measure: byPlace ? "bits" : "cosine",
  };
}

/** Where the first of the largest numbers is. */
const largestIndex = (numbers) => numbers.reduce((best, number, at) => (number > numbers[best] ? at : best), 0);

/** The most likely tokens at a position of logits [T, V]; none of other outputs. */
function describeCandidates(model, output, place, { name }) {
  if (!predictsTokens(model.config)) return [];
  const likely = mostLikely(row(output, place));
  return likely.map(([id, probability]) => ({ id, text: name(id), probability: jsonNumber(probability) }));
}
