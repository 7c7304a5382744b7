// Request bodies of the looks: every field has a type and bounds, and unknown fields are refused.
import { requireName } from "../decoding/served_model.js";
import { boolean, checkBody, either, integer, list, object, oneOf, optional, text } from "../request_body.js";

const MAX_NEW_TOKENS = 64;
const MAX_TEXT = 100_000; // characters; the text is cut to a number of tokens later
const name = text({ min: 1, max: 200 });
const prompt = text({ min: 1, max: MAX_TEXT });
const index = integer({ min: 0, max: 1024 });
const tokens = list(integer({ min: 0, max: 1 << 24 }), { max: 1024 });
const stack = oneOf("encoder", "decoder");
const map = oneOf("encoder", "decoder", "cross", "rollout", "rollout-encoder", "rollout-cross");

/** A model, a text, and its continuation: a text, token ids, or (null) what the model generates greedily. */
export const PromptRequest = {
  model: name,
  text: prompt,
  target: optional(either(prompt, tokens)),
  new: optional(integer({ min: 0, max: MAX_NEW_TOKENS })),
};

export const Look = { ...PromptRequest, maps: optional(list(map, { max: 6 })), layer: optional(index), lens: optional(boolean, true) };

export const Tensor = { ...PromptRequest, address: name, row: optional(index), head: optional(index, 0) };

export const Block = { ...PromptRequest, part: stack, layer: index, head: index, place: index };

export const Next = { ...PromptRequest, count: optional(integer({ min: 1, max: 200 }), 100) };

/** A part to switch off: a head, or with `feedforward` the feed-forward of the layer. */
const part = object({
  part: stack,
  layer: index,
  head: optional(index),
  cross: optional(boolean, false),
  feedforward: optional(boolean, false),
});

export const Ablate = { ...PromptRequest, off: list(part, { min: 1, max: 64 }) };

export const Effects = { ...PromptRequest, part: stack, layer: index };

/** A position whose tensor is replaced by that of the other text, there at `other_place` (by default the same). */
const replacement = object({ address: name, place: index, other_place: optional(index), head: optional(index) });

export const Patch = { ...PromptRequest, other: prompt, replace: list(replacement, { min: 1, max: 64 }) };

/** The body with its defaults; raises RequestError if it does not match the schema or names another model. */
export function checkRequest(runtime, schema, body) {
  const request = checkBody(schema, body);
  requireName(runtime, request.model);
  return request;
}
