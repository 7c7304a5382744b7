// The routes of the view Look.
import { addresses, block, look, nextTokens, tensor, tokens } from "./handlers.js";
import { ablate, effects, patch } from "./interventions.js";

export const LOOK_ROUTES = {
  "/v1/look": look,
  "/v1/look/tokens": tokens,
  "/v1/look/addresses": addresses,
  "/v1/look/tensor": tensor,
  "/v1/look/block": block,
  "/v1/look/next": nextTokens,
  "/v1/look/ablate": ablate,
  "/v1/look/patch": patch,
  "/v1/look/effects": effects,
};
