// What a model has, by its config.
import { RequestError } from "../errors.js";

/** Refuse a layer that the part ("encoder", "decoder"; null: the one with fewer layers) does not have. */
export function checkLayer(config, layer, part = null) {
  const depths = { encoder: config.encoder_depth, decoder: config.decoder_depth };
  if (part !== null && !depths[part]) throw new RequestError(`A model of kind '${config.kind}' has no ${part}.`);
  const count = part === null ? Math.min(...Object.values(depths).filter(Boolean)) : depths[part];
  if (layer >= count) throw new RequestError(`There is no layer ${layer}: this model has ${count}, numbered from 0.`);
}

export function checkHead(config, head) {
  if (head >= config.heads) throw new RequestError(`There is no head ${head}: this model has ${config.heads}, numbered from 0.`);
}

/** Whether the logits are over the vocabulary. */
export const predictsTokens = (config) => ["next", "masked"].includes(config.head_kind);
