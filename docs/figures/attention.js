// Attention of five words with vectors in the plane, as in the notes: the vectors are queries, keys and values at once.
//
//   A = softmax(f² X Xᵀ / √2),  Y = A X        f: all queries and keys are f times as long
import { el, svg } from "../../chumoku/viewer/core/dom.js";
import { formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { softmaxRow } from "../../chumoku/viewer/in_page/nn/softmax.js";
import { matrix } from "./matrix.js";
import { makePlane } from "./plane.js";

const WORDS = ["猫", "が", "魚", "を", "食べる"];
const VECTORS = [1, 0.1, 0.1, 0.2, 0.9, 0.2, 0.2, 0.1, 0.5, 0.8]; // of the claim attention-cat

const strings = {
  en: {
    attention_title: "What each word collects",
    attention_factor: "Factor f",
    attention_root: "Divide by √2",
    attention_plane: "Drag the words. A ring is the output of a word: the average of all vectors with the weights of its row.",
    attention_weights: "Weights: a row is a query, a column a key",
  },
  ja: {
    attention_title: "それぞれの単語が集めるもの",
    attention_factor: "倍率 f",
    attention_root: "√2 で割る",
    attention_plane: "単語をドラッグしてください。輪は単語の出力で、その行の重みで全ベクトルを平均したものです。",
    attention_weights: "重み：行がクエリ、列がキー",
  },
};

/** The weights of each word, a row per query. */
function weightsOf(points, factor, divisor) {
  return points.map((query) => {
    const row = Float64Array.from(points, (key) => (factor ** 2 * (query.x * key.x + query.y * key.y)) / divisor);
    softmaxRow(row, 0, row.length);
    return [...row];
  });
}

function make({ t }) {
  const points = WORDS.map((name, at) => ({ name, x: VECTORS[2 * at], y: VECTORS[2 * at + 1] }));
  const plane = makePlane({ points, from: -0.5, to: 1.5, onMove: () => draw() });
  const factor = slider("attention_factor", { min: 0, max: 10, step: 0.5, value: 1, format: (value) => formatNumber(value), onInput: () => draw() });
  const divide = el("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const table = el("div");
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "attention_title" }),
    formulas("A = softmax(f^2 X X^{⊤} / √2),", "Y = A X"),
    el("div", { class: "pg-sliders" }, factor.root, el("label", { class: "pg-check" }, divide, el("span", { t: "attention_root" }))),
    el(
      "div",
      { class: "pg-pair" },
      el("figure", {}, el("figcaption", { t: "attention_plane" }), plane.root),
      el("figure", {}, el("figcaption", { t: "attention_weights" }), table),
    ),
  );

  function draw() {
    const weights = weightsOf(points, factor.read(), divide.checked ? Math.SQRT2 : 1);
    const mean = (row, axis) => row.reduce((sum, weight, at) => sum + weight * points[at][axis], 0);
    const rings = weights.map((row, at) => {
      const [cx, cy] = plane.at(mean(row, "x"), mean(row, "y"));
      return svg("circle", { cx, cy, r: 11, class: "result" }, svg("title", {}, WORDS[at]));
    });
    plane.draw(rings);
    table.replaceChildren(matrix(weights, { rows: WORDS, columns: WORDS }));
  }

  return { root, draw };
}

export const figure = { strings, make };
