// A word selects a row of the embedding, and the lengths of random vectors.
//
//   x = o_i E = E_i          |a| ≈ √D for D numbers of variance 1
import { lineChart } from "../../chumoku/viewer/core/charts.js";
import { el } from "../../chumoku/viewer/core/dom.js";
import { formatInteger, formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { normal } from "../../chumoku/viewer/views/playground/formulas.js";
import { matrix } from "./matrix.js";

const WORDS = ["I", "eat", "a", "mandarin", "cat"];
const WIDTH = 4;
const random = normal(2);
const TABLE = WORDS.map(() => Array.from({ length: WIDTH }, random));
const VECTORS = 300;
const BINS = 40;

const strings = {
  en: {
    vectors_title: "A word selects a row",
    vectors_words: "Word",
    vectors_one_hot: "The one-hot vector o",
    vectors_table: "The table E",
    vectors_product: "The product o E",
    vectors_lengths: "How long are random vectors?",
    vectors_width: "Dimensions D",
    vectors_chart: "How many of {count} vectors have which length; the dashed line is at √D",
    vectors_length: "length",
    vectors_told: "Mean length {mean}, standard deviation {deviation}; √D = {root}",
  },
  ja: {
    vectors_title: "単語が行を選ぶ",
    vectors_words: "単語",
    vectors_one_hot: "one-hot ベクトル o",
    vectors_table: "表 E",
    vectors_product: "積 o E",
    vectors_lengths: "乱数のベクトルの長さ",
    vectors_width: "次元 D",
    vectors_chart: "{count} 本のベクトルの長さの分布。破線は √D",
    vectors_length: "長さ",
    vectors_told: "長さの平均 {mean}、標準偏差 {deviation}、√D = {root}",
  },
};

const product = (row) => TABLE[0].map((_, column) => row.reduce((sum, value, at) => sum + value * TABLE[at][column], 0));

function makeLookup() {
  let chosen = 3;
  const place = el("div", { class: "pg-pair" });
  const choose = (at) => {
    chosen = at;
    draw();
  };
  const words = el("div", { class: "buttons", role: "group", "t-label": "vectors_words" }, ...WORDS.map((word, at) => el("button", { type: "button", onclick: () => choose(at) }, word)));
  const figure = (key, cells, options) => el("figure", {}, el("figcaption", { t: key }), matrix(cells, { full: 2, ...options }));

  function draw() {
    [...words.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === chosen)));
    const hot = WORDS.map((_, at) => Number(at === chosen));
    place.replaceChildren(
      el("div", {}, figure("vectors_one_hot", [hot], { columns: WORDS, digits: 0, full: 1 }), figure("vectors_product", [product(hot)], { rows: [WORDS[chosen]] })),
      figure("vectors_table", TABLE, { rows: WORDS, at: chosen }),
    );
  }

  return { parts: [words, place], draw };
}

/** The lengths of random vectors with `width` numbers. */
function randomLengths(width) {
  const next = normal(width);
  return Array.from({ length: VECTORS }, () => Math.sqrt(Array.from({ length: width }, next).reduce((sum, one) => sum + one ** 2, 0)));
}

function make({ t }) {
  const lookup = makeLookup();
  const width = slider("vectors_width", { min: 0, max: 10, value: 1, from: (at) => 2 ** at, format: formatInteger, onInput: () => drawLengths() });
  const [caption, chart, told] = [el("figcaption"), el("div"), el("p", { class: "numbers", "aria-live": "polite" })];
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "vectors_title" }),
    formulas("x = o_i E = E_i"),
    ...lookup.parts,
    el("h2", { class: "pg-next", t: "vectors_lengths" }),
    width.root,
    el("figure", {}, caption, chart),
    told,
  );

  function drawLengths() {
    const lengths = randomLengths(width.read());
    const root = Math.sqrt(width.read());
    const counts = new Array(BINS).fill(0);
    const right = 2 * root + 1;
    for (const length of lengths) counts[Math.min(BINS - 1, Math.floor((length / right) * BINS))] += 1;
    const points = counts.map((count, at) => [((at + 0.5) * right) / BINS, count]);
    const options = { xs: [0, right], ys: [0, VECTORS / 2], marks: [root], xName: t("vectors_length"), width: 500, height: 200, label: t("vectors_lengths") };
    chart.replaceChildren(lineChart({ lines: [{ points }], ...options }));
    caption.textContent = t("vectors_chart", { count: VECTORS });
    const mean = lengths.reduce((sum, one) => sum + one, 0) / VECTORS;
    const deviation = Math.sqrt(lengths.reduce((sum, one) => sum + (one - mean) ** 2, 0) / VECTORS);
    told.textContent = t("vectors_told", { mean: formatNumber(mean), deviation: formatNumber(deviation, 2), root: formatNumber(root) });
  }

  return {
    root,
    draw() {
      lookup.draw();
      drawLengths();
    },
  };
}

export const figure = { strings, make };
