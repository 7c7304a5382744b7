// Training while you watch: a table of vectors and an output matrix learn which letter follows which in one line.
//
//   logits = E[letter] U       loss = −mean log P(next letter)       E and U start as small random numbers
//
// There is no attention, so the prediction depends on the last letter alone. に and わ have several successors in this line,
// so the loss has a floor: −mean log (share of the next letter among all that follow this one).
import { lineChart } from "../../chumoku/viewer/core/charts.js";
import { el } from "../../chumoku/viewer/core/dom.js";
import { formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { paint } from "../../chumoku/viewer/core/heatmap.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { softmaxRow } from "../../chumoku/viewer/in_page/nn/softmax.js";
import { normal } from "../../chumoku/viewer/views/playground/formulas.js";

const TEXT = [..."にわにはにわにわとりがいる"];
const LETTERS = [...new Set(TEXT)].sort();
const PAIRS = TEXT.slice(1).map((next, at) => [TEXT[at], next].map((letter) => LETTERS.indexOf(letter)));
const FLOOR = PAIRS.reduce((sum, [letter, next]) => {
  const after = PAIRS.filter(([one]) => one === letter);
  return sum - Math.log(after.filter(([, one]) => one === next).length / after.length) / PAIRS.length;
}, 0);
const [V, D] = [LETTERS.length, 8];
const STEPS = 60;
const [MEAN, SQUARE, TINY] = [0.9, 0.999, 1e-8]; // of Adam

const strings = {
  en: {
    training_title: "Sixty steps of training",
    training_kind: "Optimizer",
    training_descent: "gradient descent",
    training_adam: "Adam",
    training_rate: "Learning rate α",
    training_warmup: "Warm-up steps",
    training_loss: "Loss at each step. The upper line is ln {count} = {start}, the loss of a model that knows nothing; the lower one is {floor}, the best that can be known from one letter.",
    training_table: "After the last step: a row is the last letter, a column the next one",
    training_step: "step",
    training_learns: "The loss after {steps} steps is {loss}: it knows nearly all that one letter can tell.",
    training_slow: "The loss after {steps} steps is {loss}: it has learned something, but not all.",
    training_breaks: "The loss after {steps} steps is {loss}: worse than knowing nothing. These steps are too large.",
    training_nothing: "The loss after {steps} steps is {loss}: hardly anything has happened. These steps are too small.",
  },
  ja: {
    training_title: "60 ステップの学習",
    training_kind: "最適化の方法",
    training_descent: "勾配降下法",
    training_adam: "Adam",
    training_rate: "学習率 α",
    training_warmup: "ウォームアップ",
    training_loss: "各ステップの損失。上の線は ln {count} = {start} で、何も知らないモデルの損失、下の線は {floor} で、一文字から分かる限界です。",
    training_table: "学習後の予測：行は最後の文字、列は次の文字",
    training_step: "ステップ",
    training_learns: "{steps} ステップ後の損失は {loss} です。一文字から分かることは、ほぼ学習しました。",
    training_slow: "{steps} ステップ後の損失は {loss} です。学習は進みましたが、まだ足りません。",
    training_breaks: "{steps} ステップ後の損失は {loss} で、何も知らないモデルより悪くなりました。一歩が大きすぎます。",
    training_nothing: "{steps} ステップ後の損失は {loss} で、まだほとんど動いていません。一歩が小さすぎます。",
  },
};

/** P(next | letter) for a letter. */
function predict(weights, letter) {
  const shares = new Float64Array(V);
  for (let v = 0; v < V; v++) for (let d = 0; d < D; d++) shares[v] += weights[letter * D + d] * weights[V * D + d * V + v];
  softmaxRow(shares, 0, V);
  return shares;
}

/** The loss, and its gradient: ∂loss / ∂logits = P − 1 at the true letter. */
function lossAndGradient(weights) {
  const gradient = new Float64Array(weights.length);
  let loss = 0;
  for (const [letter, next] of PAIRS) {
    const shares = predict(weights, letter);
    loss -= Math.log(shares[next]) / PAIRS.length;
    shares[next] -= 1;
    for (let d = 0; d < D; d++)
      for (let v = 0; v < V; v++) {
        gradient[letter * D + d] += (shares[v] * weights[V * D + d * V + v]) / PAIRS.length;
        gradient[V * D + d * V + v] += (shares[v] * weights[letter * D + d]) / PAIRS.length;
      }
  }
  return { loss, gradient };
}

/** What each optimizer subtracts, for a learning rate of 1. */
const OPTIMIZERS = {
  descent: () => (gradient) => gradient,
  adam() {
    const [mean, square] = [new Float64Array(2 * V * D), new Float64Array(2 * V * D)];
    return (gradient, step) =>
      gradient.map((one, at) => {
        mean[at] = MEAN * mean[at] + (1 - MEAN) * one;
        square[at] = SQUARE * square[at] + (1 - SQUARE) * one ** 2;
        return mean[at] / (1 - MEAN ** step) / (Math.sqrt(square[at] / (1 - SQUARE ** step)) + TINY);
      });
  },
};

function train(kind, rate, warmup) {
  const random = normal(5);
  const weights = Float64Array.from({ length: 2 * V * D }, () => 0.3 * random());
  const direction = OPTIMIZERS[kind]();
  const losses = [];
  for (let step = 1; step <= STEPS; step++) {
    const { loss, gradient } = lossAndGradient(weights);
    losses.push([step, loss]);
    const factor = rate * Math.min(1, step / (warmup || 1));
    direction(gradient, step).forEach((one, at) => (weights[at] -= factor * one));
  }
  return { losses, weights };
}

function judge(last, start) {
  if (last < 1.15 * FLOOR) return "learns";
  if (last < 0.9 * start) return "slow";
  return last < 1.1 * start ? "nothing" : "breaks";
}

function make({ t, storedValue }) {
  const stored = storedValue("kind", "descent");
  const onInput = () => draw();
  const rate = slider("training_rate", { min: -3, max: 2, step: 0.1, value: 0, from: (at) => 10 ** at, format: (value) => formatNumber(value, 2), onInput });
  const warmup = slider("training_warmup", { min: 0, max: 40, value: 0, onInput });
  const choose = (kind) => {
    stored.set(kind);
    draw();
  };
  const button = (kind) => el("button", { type: "button", "data-kind": kind, t: `training_${kind}`, onclick: () => choose(kind) });
  const kinds = el("div", { class: "buttons", role: "group", "t-label": "training_kind" }, ...Object.keys(OPTIMIZERS).map(button));
  const [chart, caption] = [el("div"), el("figcaption")];
  const picture = el("canvas", { class: "picture", role: "img", "t-label": "training_table" });
  const readout = el("p", { class: "numbers", "aria-live": "polite" });
  const curve = el("figure", {}, caption, chart);
  const table = el("figure", {}, el("figcaption", { t: "training_table" }), picture);
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "training_title" }),
    formulas("θ ← θ − α ∇L(θ)"),
    kinds,
    el("div", { class: "pg-sliders" }, rate.root, warmup.root),
    el("div", { class: "pg-pair" }, curve, table),
    readout,
  );

  function draw() {
    const kind = Object.hasOwn(OPTIMIZERS, stored.get()) ? stored.get() : "descent";
    for (const one of kinds.children) one.setAttribute("aria-pressed", String(one.dataset.kind === kind));
    const { losses, weights } = train(kind, rate.read(), warmup.read());
    const start = Math.log(V);
    caption.textContent = t("training_loss", { count: V, start: formatNumber(start), floor: formatNumber(FLOOR) });
    const levels = [start, FLOOR].map((level) => ({ points: [[1, level], [STEPS, level]], kind: "second" }));
    chart.replaceChildren(lineChart({ lines: [...levels, { points: losses }], ys: [0, 2 * start], xName: t("training_step"), width: 420, height: 230, label: t("training_title") }));
    const shares = Float32Array.from(LETTERS.flatMap((_, letter) => [...predict(weights, letter)]));
    paint(picture, { values: shares, rows: V, columns: V, limit: 1, linear: true });
    const last = losses.at(-1)[1];
    readout.textContent = t(`training_${judge(last, start)}`, { steps: STEPS, loss: formatNumber(last) });
  }

  return { root, draw };
}

export const figure = { strings, make };
