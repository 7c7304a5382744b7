// LayerNorm and RMSNorm of x = factor · (1, 2, 3, 4) + shift, with γ = 1 and β = 0.
import { el } from "../../chumoku/viewer/core/dom.js";
import { formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { layerNorm, rmsNorm } from "../../chumoku/viewer/in_page/nn/norms.js";
import { matrix } from "./matrix.js";

const START = [1, 2, 3, 4];
const ONES = Float32Array.from(START, () => 1);
const ZEROS = Float32Array.from(START, () => 0);

const strings = {
  en: {
    norms_title: "What a norm takes away",
    norms_factor: "Factor",
    norms_shift: "Shift",
    norms_epsilon: "ε",
    norms_mean: "mean",
    norms_deviation: "std. dev.",
    norms_kept: "The standard deviation of the input is {sigma}, and √ε is {root}: LayerNorm brings the numbers to a standard deviation of 1, whatever factor and shift are.",
    norms_lost: "The standard deviation of the input is {sigma}, not much above √ε = {root} or below it. Now ε is a good part of the divisor, and LayerNorm no longer reaches 1.",
  },
  ja: {
    norms_title: "正規化が取り除くもの",
    norms_factor: "倍率",
    norms_shift: "ずらす量",
    norms_epsilon: "ε",
    norms_mean: "平均",
    norms_deviation: "標準偏差",
    norms_kept: "入力の標準偏差は {sigma}、√ε は {root} です。LayerNorm の結果は、倍率とずらす量に関係なく、標準偏差が 1 になります。",
    norms_lost: "入力の標準偏差は {sigma} で、√ε = {root} より十分に大きくありません。割る数に ε が効いてくるので、LayerNorm でも標準偏差が 1 になりません。",
  },
};

function describe(numbers) {
  const mean = numbers.reduce((sum, one) => sum + one, 0) / numbers.length;
  return { mean, deviation: Math.sqrt(numbers.reduce((sum, one) => sum + (one - mean) ** 2, 0) / numbers.length) };
}

function make({ t }) {
  const powers = { from: (at) => 10 ** at, format: (value) => formatNumber(value, 2) };
  const onInput = () => draw();
  const factor = slider("norms_factor", { min: -4, max: 3, step: 0.25, value: 0, ...powers, onInput });
  const shift = slider("norms_shift", { min: -10, max: 10, step: 0.5, value: 0, format: (value) => formatNumber(value), onInput });
  const epsilon = slider("norms_epsilon", { min: -8, max: 0, step: 0.5, value: -5, ...powers, onInput });
  const table = el("div");
  const explanation = el("p", { class: "numbers", "aria-live": "polite" });
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "norms_title" }),
    formulas("LayerNorm(x) = (x − μ) / √(σ^2 + ε),", "RMSNorm(x) = x / √(mean(x^2) + ε)"),
    el("div", { class: "pg-sliders" }, factor.root, shift.root, epsilon.root),
    table,
    explanation,
  );

  function draw() {
    const x = Float32Array.from(START, (one) => factor.read() * one + shift.read());
    const rows = [x, layerNorm(x, ONES, ZEROS, epsilon.read()), rmsNorm(x, ONES, epsilon.read())].map((row) => [...row]);
    const told = rows.map(describe);
    const cells = rows.map((row, at) => [...row, told[at].mean, told[at].deviation]);
    const columns = ["x₁", "x₂", "x₃", "x₄", t("norms_mean"), t("norms_deviation")];
    table.replaceChildren(matrix(cells, { rows: ["x", "LayerNorm", "RMSNorm"], columns, full: 2, digits: 3 }));
    const kept = Math.abs(told[1].deviation - 1) < 0.01;
    const values = { sigma: formatNumber(told[0].deviation, 2), root: formatNumber(Math.sqrt(epsilon.read()), 2) };
    explanation.textContent = t(kept ? "norms_kept" : "norms_lost", values);
  }

  return { root, draw };
}

export const figure = { strings, make };
