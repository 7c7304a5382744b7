// The model of a page, as requests name it.
import { RequestError } from "../errors.js";

/** Refuse a request for another model. */
export function requireName(runtime, name) {
  if (name === runtime.name) return;
  const message = `There is no model with this name. Available: ${runtime.name}.`;
  throw new RequestError(message, { status: 404, param: "model", code: "model_not_found" });
}

/** Refuse a request for another model, or for one of another kind. */
export function requireModel(runtime, name, kind, cannot) {
  const { config } = runtime.model;
  requireName(runtime, name);
  if (config.kind === kind && config.labels === null) return;
  const found = config.labels === null ? config.kind : `${config.kind}' with the head '${config.head}`;
  throw new RequestError(`${runtime.name} is of kind '${found}' and ${cannot}.`, { param: "model" });
}

/** The most tokens of a sequence, up to `wanted`; only learned positions have a limit, the model's context. */
export function longest({ config }, wanted) {
  return config.position === "learned" ? Math.min(wanted, config.context) : wanted;
}

export const formatCount = (number) => number.toLocaleString("en");
