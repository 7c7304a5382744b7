// A feed-forward layer with one input and one output that follows a curve as well as its hidden units allow.
//
//   y(x) = Σ_u f(k (x − c_u)) v_u + b      c_u: evenly spaced;  v, b: least squares
import { lineChart } from "../../chumoku/viewer/core/charts.js";
import { el } from "../../chumoku/viewer/core/dom.js";
import { formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { ACTIVATIONS } from "../../chumoku/viewer/in_page/nn/activations.js";

const SHARPNESS = 2; // k
const [LEFT, RIGHT] = [-3, 3];
const XS = Array.from({ length: 121 }, (_, at) => LEFT + ((RIGHT - LEFT) * at) / 120);
const target = (x) => Math.sin(2 * x) + x / 3;
const KINDS = { relu: ACTIVATIONS.relu.f, gelu: ACTIVATIONS.gelu.f, silu: ACTIVATIONS.silu.f, linear: (x) => x };
const RIDGE = 1e-6; // keeps units that are equal, as linear ones, from dividing by zero

const strings = {
  en: {
    ff_title: "Hidden units add up to a curve",
    ff_kind: "Activation f",
    ff_linear: "none (linear)",
    ff_units: "Hidden units F",
    ff_target: "the curve",
    ff_output: "the layer",
    ff_parts: "what each unit adds",
    ff_error: "Root mean square error: {error}",
    ff_straight: "Without an activation the sum of straight lines is a straight line, with 1 unit as with 32.",
  },
  ja: {
    ff_title: "隠れユニットの和が曲線になる",
    ff_kind: "活性化関数 f",
    ff_linear: "なし（線形）",
    ff_units: "隠れユニット F",
    ff_target: "目標の曲線",
    ff_output: "層の出力",
    ff_parts: "各ユニットが足すもの",
    ff_error: "誤差の二乗平均平方根：{error}",
    ff_straight: "活性化関数がなければ、ユニットが 1 個でも 32 個でも、直線の和は直線です。",
  },
};

/** The weights w that make |A w − y|² + RIDGE |w|² least: (AᵀA + RIDGE) w = Aᵀy, by elimination. */
function leastSquares(rows, y) {
  const count = rows[0].length;
  const dot = (one, other) => one.reduce((sum, value, at) => sum + value * other[at], 0);
  const columns = Array.from({ length: count }, (_, c) => rows.map((row) => row[c]));
  const system = columns.map((column, r) => [...columns.map((other, c) => dot(column, other) + (r === c ? RIDGE : 0)), dot(column, y)]);
  for (let at = 0; at < count; at++) {
    const best = system.slice(at).reduce((top, row, more) => (Math.abs(row[at]) > Math.abs(system[top][at]) ? at + more : top), at);
    [system[at], system[best]] = [system[best], system[at]];
    for (let row = 0; row < count; row++) {
      if (row === at) continue;
      const factor = system[row][at] / system[at][at];
      for (let c = at; c <= count; c++) system[row][c] -= factor * system[at][c];
    }
  }
  return system.map((row, at) => row[count] / row[at]);
}

/** What each unit and the bias add at each x. */
function fit(f, units) {
  const centers = Array.from({ length: units }, (_, u) => LEFT + ((RIGHT - LEFT) * u) / units);
  const hidden = XS.map((x) => [...centers.map((center) => f(SHARPNESS * (x - center))), 1]);
  const weights = leastSquares(hidden, XS.map(target));
  return hidden.map((row) => row.map((value, at) => value * weights[at]));
}

function make({ t, storedValue }) {
  const stored = storedValue("kind", "relu");
  const units = slider("ff_units", { min: 1, max: 32, value: 6, onInput: () => draw() });
  const choose = (kind) => {
    stored.set(kind);
    draw();
  };
  const button = (kind) =>
    el("button", { type: "button", "data-kind": kind, onclick: () => choose(kind), ...(kind === "linear" && { t: "ff_linear" }) }, kind === "linear" ? null : kind);
  const kinds = el("div", { class: "buttons", role: "group", "t-label": "ff_kind" }, ...Object.keys(KINDS).map(button));
  const chart = el("div");
  const legend = ["second", "first", "third"].map((kind, at) => el("span", { class: kind, t: ["ff_target", "ff_output", "ff_parts"][at] }));
  const readout = el("p", { class: "numbers", "aria-live": "polite" });
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "ff_title" }),
    formulas("y = Σ_u f(k_u x + b_u) v_u + b"),
    kinds,
    units.root,
    el("div", { class: "legend" }, ...legend),
    chart,
    readout,
  );

  function draw() {
    const kind = Object.hasOwn(KINDS, stored.get()) ? stored.get() : "relu";
    for (const one of kinds.children) one.setAttribute("aria-pressed", String(one.dataset.kind === kind));
    const parts = fit(KINDS[kind], units.read());
    const sums = parts.map((row) => row.reduce((sum, value) => sum + value, 0));
    const line = (values, style) => ({ points: XS.map((x, at) => [x, values[at]]), kind: style });
    const each = Array.from({ length: units.read() }, (_, u) => line(parts.map((row) => row[u]), "third"));
    const lines = [...each, line(XS.map(target), "second"), line(sums, "first")];
    chart.replaceChildren(lineChart({ lines, ys: [-3.2, 3.2], width: 520, height: 250, label: t("ff_title") }));
    const error = Math.sqrt(sums.reduce((sum, value, at) => sum + (value - target(XS[at])) ** 2, 0) / XS.length);
    readout.textContent = `${t("ff_error", { error: formatNumber(error, 2) })}${kind === "linear" ? ` · ${t("ff_straight")}` : ""}`;
  }

  return { root, draw };
}

export const figure = { strings, make };
