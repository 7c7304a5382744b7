// Masks: which keys a query sees, and the weights that softmax gives them.
//
//   causal  j ≤ i        window  |i − j| < N        padding  j is not filler        documents  i and j are in the same text
import { el } from "../../chumoku/viewer/core/dom.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { softmaxRow } from "../../chumoku/viewer/in_page/nn/softmax.js";
import { normal } from "../../chumoku/viewer/views/playground/formulas.js";
import { matrix } from "./matrix.js";

const LENGTH = 6;
const SPLIT = 3; // where the second text of a row starts
const NAMES = Array.from({ length: LENGTH }, (_, at) => String(at));

const strings = {
  en: {
    masks_title: "Masks and the weights that they leave",
    masks_causal: "causal: no later keys",
    masks_documents: "two texts in the row",
    masks_late: "wrong: mask after the softmax",
    masks_window: "Window N",
    masks_padding: "Filler at the end",
    masks_table: "Weights: a row is a query, a column a key; hatched is hidden. On the right is the sum of the row.",
    masks_right: "Every row that sees anything sums to 1. A query that sees no key gets zeros.",
    masks_wrong: "The weights of the hidden keys are gone, but those of the others are as small as before, so the rows do not sum to 1.",
  },
  ja: {
    masks_title: "マスクと、残った重み",
    masks_causal: "因果マスク：後ろのキーを隠す",
    masks_documents: "一行に二つの文章",
    masks_late: "誤り：softmax の後で隠す",
    masks_window: "窓の幅 N",
    masks_padding: "末尾の詰めもの",
    masks_table: "重み：行がクエリ、列がキー。斜線は隠れたところ、右端は行の合計です。",
    masks_right: "何かが見える行の合計は、いつも 1 です。見えるキーが一つもないクエリには 0 が入ります。",
    masks_wrong: "隠したキーの重みは消えましたが、残りの重みは小さいままなので、行の合計が 1 になりません。",
  },
};

function make({ t }) {
  const random = normal(3);
  const scores = Array.from({ length: LENGTH }, () => Array.from({ length: LENGTH }, random));
  const onInput = () => draw();
  const check = (key, checked = false) => {
    const input = el("input", { type: "checkbox", checked, onchange: onInput, "data-mask": key });
    return { input, root: el("label", { class: "pg-check" }, input, el("span", { t: `masks_${key}` })) };
  };
  const [causal, documents, late] = [check("causal", true), check("documents"), check("late")];
  const window = slider("masks_window", { min: 1, max: LENGTH, value: LENGTH, onInput });
  const padding = slider("masks_padding", { min: 0, max: LENGTH - 1, value: 0, onInput });
  const table = el("div");
  const explanation = el("p", { "aria-live": "polite" });
  const controls = [causal, window, documents, padding, late].map((one) => one.root);
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "masks_title" }),
    el("div", { class: "pg-sliders" }, ...controls),
    el("figure", {}, el("figcaption", { t: "masks_table" }), table),
    explanation,
  );

  const sees = (i, j) =>
    (!causal.input.checked || j <= i) &&
    Math.abs(i - j) < window.read() &&
    j < LENGTH - padding.read() &&
    (!documents.input.checked || i < SPLIT === j < SPLIT);

  /** The weights of a query; null: hidden. */
  function weightsOf(i) {
    const keys = scores[i].map((_, j) => j).filter((j) => late.input.checked || sees(i, j));
    const shares = Float64Array.from(keys, (j) => scores[i][j]);
    softmaxRow(shares, 0, shares.length);
    return scores[i].map((_, j) => (sees(i, j) ? shares[keys.indexOf(j)] : null));
  }

  function draw() {
    const weights = scores.map((_, i) => weightsOf(i));
    const sums = weights.map((row) => row.reduce((sum, weight) => sum + (weight ?? 0), 0));
    table.replaceChildren(matrix(weights, { rows: NAMES, columns: NAMES, sums }));
    explanation.textContent = t(late.input.checked ? "masks_wrong" : "masks_right");
  }

  return { root, draw };
}

export const figure = { strings, make };
