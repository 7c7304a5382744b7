// An encoder or decoder stack as the structures of native/structs.h.
import { floatBits } from "./library.js";
import { NO_NORM, NO_PRODUCT } from "./pack.js";

const ACTIVATIONS = { relu: 0, gelu: 1, gelu_tanh: 2, silu: 3, geglu: 1, geglu_tanh: 2, swiglu: 3 };
const GATED = ["geglu", "geglu_tanh", "swiglu"];
const NO_WINDOW = 1 << 30; // larger than any distance

/** The address of the structure of a stack, "encoder" or "decoder"; a decoder's outputs are logits. */
export function packStack(packer, name) {
  const { library, container } = packer;
  const { config } = container;
  const decoder = name === "decoder";
  const layers = Array.from({ length: decoder ? config.decoder_depth : config.encoder_depth }, (_, layer) => packLayer(packer, name, layer));
  return library.copyIntegers([
    ...[layers.length, config.width, config.heads, config.key_heads, config.key_width, config.hidden],
    ...[ACTIVATIONS[config.feedforward], GATED.includes(config.feedforward), config.parallel, config.pairing === "half"],
    ...[hasCross(config, name), config.query_key_norm === "all", 2 * (config.rotary_frequencies?.length ?? 0), config.relative_clip],
    ...[floatBits(config.attention_scale ?? config.key_width ** -0.5), floatBits(config.score_cap ?? 0)],
    library.copyIntegers(layers.flat()),
    ...packer.norm(`${name}.norm`, config.width),
    ...(decoder ? packLogits(packer) : NO_PRODUCT),
  ]);
}

/** The products of cross-attention keys and values of each layer. */
export function packMemory(packer) {
  const { config } = packer.container;
  const wide = config.key_heads * config.key_width;
  return Array.from({ length: config.decoder_depth }, (_, layer) => {
    const path = `decoder.blocks.${layer}.cross_attention`;
    const [key, value] = ["key", "value"].map((part) => packer.library.copyIntegers(packer.product([`${path}.${part}`], [wide], config.width)));
    return { key, value };
  });
}

function hasCross(config, name) {
  return config.kind === "encoder-decoder" && name === "decoder";
}

function packLogits(packer) {
  const { config } = packer.container;
  if (packer.container.has("head.weight")) return packer.product(["head"], [config.vocabulary], config.width);
  const product = packer.matrices(["decoder.embedding.table"], [config.vocabulary], config.width);
  const bias = packer.container.optional("head.bias", [config.vocabulary]);
  return [...product.slice(0, 4), bias === null ? 0 : packer.library.copyFloats(bias.data)];
}

function packLayer(packer, stack, layer) {
  const { config } = packer.container;
  const { width, heads, key_heads: keyHeads, key_width: keyWidth, hidden } = config;
  const path = `${stack}.blocks.${layer}`, attention = `${path}.attention`, cross = `${path}.cross_attention`, feed = `${path}.feedforward`;
  const query = heads * keyWidth, key = keyHeads * keyWidth, withCross = hasCross(config, stack);
  const headNorm = (name, count) => packer.norm(name, config.query_key_norm === "all" ? count * keyWidth : keyWidth, { rms: true });
  const up = GATED.includes(config.feedforward) ? ["gate", "up"] : ["up"];
  return [
    ...["attention", "cross_attention", "feedforward"].flatMap((sublayer) => packNorms(packer, path, sublayer)),
    ...headNorm(`${attention}.query_norm`, heads),
    ...headNorm(`${attention}.key_norm`, keyHeads),
    ...headNorm(`${cross}.query_norm`, heads),
    ...packer.product(["query", "key", "value"].map((part) => `${attention}.${part}`), [query, key, key], width),
    ...NO_PRODUCT,
    ...NO_PRODUCT,
    ...packer.product([`${attention}.output`], [width], query),
    ...(withCross ? packer.product([`${cross}.query`], [query], width) : NO_PRODUCT),
    ...(withCross ? packer.product([`${cross}.output`], [width], query) : NO_PRODUCT),
    ...packer.product(up.map((part) => `${feed}.${part}`), up.map(() => hidden), width),
    ...NO_PRODUCT,
    ...packer.product([`${feed}.down`], [width], hidden),
    relativeTable(packer, attention),
    config.local_layers[layer] ? config.attention_window : NO_WINDOW,
    config.rotated_layers[layer] ? Number(config.local_layers[layer] && config.local_rotary_frequencies !== null) : -1,
  ];
}

function relativeTable(packer, attention) {
  const { config } = packer.container;
  const table = packer.container.optional(`${attention}.relative.table`, [2 * config.relative_clip + 1, config.key_width]);
  return table === null ? 0 : packer.library.copyFloats(table.data);
}

/** The norms of a sublayer's input, output and sum, by the placement of norms. */
function packNorms(packer, path, sublayer) {
  const { config } = packer.container;
  // Without a norm of its own, a parallel feed-forward has that of the attention.
  const own = config.shared_norm && sublayer === "feedforward" ? "attention" : sublayer;
  const norm = packer.norm(`${path}.${own}_norm`, config.width);
  const output = packer.norm(`${path}.${sublayer}_output_norm`, config.width);
  const { input = NO_NORM, after = NO_NORM, sum = NO_NORM } = {
    pre: { input: norm },
    post: { sum: norm },
    output: { after: norm },
    sandwich: { input: norm, after: output },
  }[config.placement];
  return [...input, ...after, ...sum];
}
