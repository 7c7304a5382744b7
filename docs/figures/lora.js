// How well a product of two thin matrices can be a change of weights: ΔW ≈ B A, with rank r.
//
//   ΔW = Σ of a few patterns + noise       B A: the best of rank r, by singular values
import { bars } from "../../chumoku/viewer/core/bars.js";
import { el, percent } from "../../chumoku/viewer/core/dom.js";
import { formatInteger, formulas } from "../../chumoku/viewer/core/format.js";
import { paint } from "../../chumoku/viewer/core/heatmap.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { normal } from "../../chumoku/viewer/views/playground/formulas.js";

const SIZE = 24;
const ROUNDS = 40; // of power iteration for each singular value

const strings = {
  en: {
    lora_title: "A change of weights as a product of rank r",
    lora_rank: "Rank r",
    lora_patterns: "Patterns in ΔW",
    lora_noise: "Noise in ΔW",
    lora_wanted: "ΔW, the change that the task needs",
    lora_product: "B A, what the adapter can be",
    lora_rest: "ΔW − B A, what is left",
    lora_trained: "trained",
    lora_explained: "explained",
    lora_told: "The adapter has {trained} numbers and ΔW {all}; it explains {share} of the squares of ΔW.",
  },
  ja: {
    lora_title: "重みの変化をランク r の積で表す",
    lora_rank: "ランク r",
    lora_patterns: "ΔW の中の型の数",
    lora_noise: "ΔW のノイズ",
    lora_wanted: "ΔW：課題に必要な変化",
    lora_product: "B A：アダプタが表せる変化",
    lora_rest: "ΔW − B A：残り",
    lora_trained: "学習する数",
    lora_explained: "表せた割合",
    lora_told: "アダプタの数は {trained} 個、ΔW は {all} 個です。アダプタは、ΔW の二乗和の {share} を表しています。",
  },
};

const multiply = (matrix, vector) => matrix.map((row) => row.reduce((sum, value, at) => sum + value * vector[at], 0));
const transpose = (matrix) => matrix[0].map((_, column) => matrix.map((row) => row[column]));
const squares = (matrix) => matrix.flat().reduce((sum, value) => sum + value ** 2, 0);

/** Σ of `count` patterns u vᵀ, each weaker than the one before, plus noise. */
function makeChange(count, noise) {
  const random = normal(9);
  const vectors = Array.from({ length: 2 * SIZE }, () => Array.from({ length: SIZE }, random)); // of all patterns, so that a slider moves one thing
  const change = Array.from({ length: SIZE }, () => Array.from({ length: SIZE }, () => noise * random()));
  for (let one = 0; one < count; one++)
    for (let i = 0; i < SIZE; i++) for (let j = 0; j < SIZE; j++) change[i][j] += (vectors[2 * one][i] * vectors[2 * one + 1][j]) / (1 + one / 2);
  return change;
}

/** The best product of rank `rank`: the largest singular directions are found by power iteration and taken away, one by one. */
function bestProduct(change, rank) {
  const rest = change.map((row) => [...row]);
  for (let one = 0; one < rank; one++) {
    const random = normal(one + 1);
    let right = Array.from({ length: SIZE }, random);
    const back = transpose(rest);
    for (let round = 0; round < ROUNDS; round++) {
      right = multiply(back, multiply(rest, right));
      const length = Math.hypot(...right) || 1;
      right = right.map((value) => value / length);
    }
    const left = multiply(rest, right);
    for (let i = 0; i < SIZE; i++) for (let j = 0; j < SIZE; j++) rest[i][j] -= left[i] * right[j];
  }
  return { rest, product: change.map((row, i) => row.map((value, j) => value - rest[i][j])) };
}

function make({ t }) {
  const onInput = () => draw();
  const rank = slider("lora_rank", { min: 0, max: SIZE, value: 1, onInput });
  const patterns = slider("lora_patterns", { min: 1, max: 8, value: 3, onInput });
  const noise = slider("lora_noise", { min: 0, max: 1, step: 0.05, value: 0.1, onInput });
  const pictures = ["wanted", "product", "rest"].map((name) => {
    const canvas = el("canvas", { class: "picture", role: "img", "t-label": `lora_${name}` });
    return { canvas, root: el("figure", {}, el("figcaption", { t: `lora_${name}` }), canvas) };
  });
  const shares = el("div");
  const readout = el("p", { class: "numbers", "aria-live": "polite" });
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "lora_title" }),
    formulas("ΔW ≈ B A,", "B: 24 × r,", "A: r × 24"),
    el("div", { class: "pg-sliders" }, rank.root, patterns.root, noise.root),
    el("div", { class: "three" }, ...pictures.map((one) => one.root)),
    shares,
    readout,
  );

  function draw() {
    const change = makeChange(patterns.read(), noise.read());
    const { product, rest } = bestProduct(change, rank.read());
    for (const [at, cells] of [change, product, rest].entries())
      paint(pictures[at].canvas, { values: Float32Array.from(cells.flat()), rows: SIZE, columns: SIZE, signed: true, limit: 3 });
    const [trained, all] = [2 * SIZE * rank.read(), SIZE ** 2];
    const explained = 1 - squares(rest) / squares(change);
    const row = (key, share) => ({ name: t(key), share, label: percent(share), strong: true });
    shares.replaceChildren(bars([row("lora_explained", explained), row("lora_trained", trained / all)]));
    readout.textContent = t("lora_told", { trained: formatInteger(trained), all: formatInteger(all), share: percent(explained) });
  }

  return { root, draw };
}

export const figure = { strings, make };
