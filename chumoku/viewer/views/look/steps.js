// The computation of one block as cards, in order: embedding, attention, feed-forward, output; formulas beside numbers.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { formatNumber, formula, toNumber } from "../../core/format.js";
import { scores, stack, strip } from "./vectors.js";

const NORM = { layer: "norm(x) = γ (x − μ) / σ + β", rms: "norm(x) = γ x / √mean(x^2)", batch: "norm(x) = γ (x − μ_B) / σ_B + β" };
const FEED = {
  relu: "max(0, x W_1 + b_1) W_2 + b_2",
  gelu: "gelu(x W_1 + b_1) W_2 + b_2",
  gelu_tanh: "gelu(x W_1 + b_1) W_2 + b_2",
  silu: "silu(x W_1 + b_1) W_2 + b_2",
  geglu: "(gelu(x W_g) ⊙ x W_u) W_d",
  geglu_tanh: "(gelu(x W_g) ⊙ x W_u) W_d",
  swiglu: "(silu(x W_g) ⊙ x W_u) W_d",
};
// The sum after a sublayer with output o, by the placement of norms.
const SUM = { pre: "x + o", post: "norm(x + o)", output: "x + norm(o)", sandwich: "x + norm(o)" };
const POSITION = {
  sinusoidal: "PE(i, 2d) = sin(i / 10000^{2d/D}),  PE(i, 2d+1) = cos(i / 10000^{2d/D})",
  learned: "x = E_{token} + P_i",
  rotary: "x = E_{token}",
  relative: "x = E_{token}",
  relative_bias: "x = E_{token}",
  alibi: "x = E_{token}",
  none: "x = E_{token}",
};

/** The cards of one position in one block. */
export function steps(block, look, selection, t) {
  const { config } = block;
  const pre = ["pre", "sandwich"].includes(config.norm_place);
  const x = { block, look, selection, t, config, pre, width: config.width, names: block.tokens.map((one) => one.text) };
  const cards = [inputCard(x), ...(pre ? [normCard(x, "look_norm1", block.norm1)] : []), ...attentionCards(x), headsCard(x)];
  if (block.cross) cards.push(...crossCards(x));
  cards.push(feedforwardCard(x), outputCard(x), predictionCard(x));
  return cards.filter(Boolean).map((one, at) => card(at + 1, one));
}

function card(number, { id, title, say, line, lines = [], inside }) {
  const heading = el("h3", {}, el("span", { class: "step-number" }, String(number)), el("span", { t: title }));
  const text = el("div", { class: "step-told" }, heading);
  for (const one of [line, ...lines]) if (one) text.append(el("p", { class: "formulas" }, formula(one)));
  text.append(el("p", { class: "hint", t: say }));
  return el("section", { class: "card step", id, "data-title": title }, text, el("div", { class: "step-shown" }, ...inside.filter(Boolean)));
}

function inputCard({ block, selection, config, width, t }) {
  const scaled = config.scale_embedding ? "x = √D E_{token} + PE_i" : "x = E_{token} + PE_i";
  if (selection.layer > 0) {
    const inside = [strip(`x${sub(selection.layer)}`, block.input, { of: width }), norm(block.norms.input)];
    return { id: "step-in", title: "look_enters", say: "look_enters_say", line: "x_l = block_{l−1}(x_{l−1})", inside };
  }
  const adds = block.embedding.position !== null;
  const inside = [strip(t("look_token_vector"), block.embedding.token, { of: width })];
  if (adds) inside.push(strip(t("look_place_vector"), block.embedding.position, { of: width }));
  inside.push(strip("x₀", block.input, { of: width }), norm(block.norms.input));
  const lines = config.position === "sinusoidal" ? [scaled, POSITION.sinusoidal] : [POSITION[config.position]];
  return { id: "step-in", title: "look_embedding", say: `look_position_${config.position}`, lines, inside };
}

function normCard({ config, width }, title, values) {
  return { id: "step-" + title, title, say: config.norm === "rms" ? "look_norm_rms" : "look_norm_say", line: NORM[config.norm], inside: [strip("y", values, { of: width })] };
}

function attentionCards({ block, config, names, t, pre }) {
  const y = pre ? "y" : "x";
  const keys = block.masked.some(Boolean) ? "look_keys_masked" : "look_keys";
  const rotation = config.position === "rotary" ? ["q_i, k_j  ←  R_i q, R_j k"] : [];
  return [
    {
      id: "step-query",
      title: "look_query",
      say: config.position === "rotary" ? "look_query_rotary" : "look_query_say",
      line: `q = ${y} W_Q,  k_j = ${y}_j W_K`,
      lines: rotation,
      inside: [strip("q", block.query), el("p", { class: "hint", t: keys }), stack(names, block.keys, { faint: block.masked, label: t("look_keys") })],
    },
    {
      id: "step-scores",
      title: "look_scores",
      say: block.masked.some(Boolean) ? "look_scores_masked" : "look_scores_say",
      line: `a_j = softmax_j(q · k_j / √K${block.bias ? " + b_{i−j}" : ""})`,
      lines: [`√K = √${config.head_width} = ${formatNumber(Math.sqrt(config.head_width))}`],
      inside: [scores(block, names, t)],
    },
    {
      id: "step-values",
      title: "look_values",
      say: "look_values_say",
      line: "h = Σ_j a_j v_j",
      inside: [stack(names, block.values, { faint: block.masked, label: t("look_values_of") }), strip("h", block.context)],
    },
  ];
}

function headsCard({ block, config, width }) {
  const inside = [strip("o", block.output, { of: width }), norm(block.norms.attention)];
  const sum = SUM[config.norm_place];
  inside.push(strip(sum, block.after_attention, { of: width }));
  const lines = [`o = [h_1 … h_{${config.heads}}] W_O`, `x ← ${sum}`];
  return { id: "step-join", title: "look_join", say: `look_join_${config.norm_place}`, lines, inside };
}

function crossCards({ block, config, width, t }) {
  const names = block.cross.tokens.map((one) => one.text);
  const inside = [strip("q", block.cross.query), scores(block.cross, names, t)];
  const after = [strip("h", block.cross.context), strip("o", block.cross_output, { of: width })];
  after.push(strip(SUM[config.norm_place], block.after_cross, { of: width }));
  const queryLines = ["q = y W_Q,  k_j = m_j W_K,  v_j = m_j W_V", `a_j = softmax_j(q · k_j / √${config.head_width})`];
  const valueLines = ["h = Σ_j a_j v_j", "o = [h_1 … h_H] W_O"];
  return [
    { id: "step-cross", title: "look_cross", say: "look_cross_say", lines: queryLines, inside },
    { id: "step-cross-out", title: "look_cross_out", say: "look_values_say", lines: valueLines, inside: after },
  ];
}

function feedforwardCard({ block, config, width, pre, t }) {
  const inside = pre ? [strip("y", block.norm2, { of: width })] : [];
  inside.push(strip(t("look_hidden"), block.hidden, { of: config.hidden }), strip("f", block.feedforward, { of: width }));
  inside.push(norm(block.norms.feedforward));
  const say = config.experts ? "look_feed_experts" : "look_feed_say";
  return { id: "step-feed", title: "look_feed", say, line: "f = " + FEED[config.feedforward], inside };
}

function outputCard({ block, selection, config, width }) {
  const inside = [strip(`x${sub(selection.layer + 1)}`, block.out, { of: width }), norm(block.norms.out)];
  return { id: "step-out", title: "look_out", say: "look_out_say", line: `x_{l+1} = ${SUM[config.norm_place].replace("o)", "f)").replace(/o$/, "f")}`, inside };
}

/** The prediction at this position; for an encoder, what its output vectors are used for. */
function predictionCard({ look, selection, t }) {
  const base = { id: "step-choice", title: "look_choice", line: "p = softmax(norm(x_L) W)" };
  const predicts = look.kind === "encoder" ? look.lens !== null : selection.part === "decoder";
  const after = look.kind === "encoder" ? "look_vector_say" : "look_memory_say";
  if (!predicts) return { ...base, title: "look_memory", line: null, say: after, inside: [] };
  const word = look.words.find((one) => one.place === selection.place);
  const candidates = word?.candidates ?? look.lens?.at(-1)?.[selection.place];
  if (!candidates) return { ...base, say: "look_choice_later", inside: [] };
  const probabilities = candidates.map(([name, share]) => [name, toNumber(share)]);
  const row = ([name, share]) => ({ name, share, label: percent(share), strong: name === word?.name });
  const inside = [bars(probabilities.map(row))];
  const values = { word: word?.name, rank: word?.rank, chance: percent(toNumber(word?.probability)) };
  if (word?.name) inside.push(el("p", { class: "numbers" }, t("look_chose", values)));
  return { ...base, say: "look_choice_say", inside };
}

const norm = (value) => el("p", { class: "hint numbers" }, `‖·‖ = ${formatNumber(value)}`);
const sub = (number) => String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
