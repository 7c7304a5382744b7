// Softmax: adjustable scores and temperature, and why scores are divided by √d.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { formatNumber, formulas } from "../../core/format.js";
import { entropy, randomScores, slope, softmax } from "./formulas.js";
import { slider } from "../../core/sliders.js";

const SCORES = [2.2, 1.4, 0.6, 0, -0.8];
const KEYS = 12;

export function makeSoftmax({ t }) {
  const powers = { from: (at) => 10 ** at, format: (value) => formatNumber(value, 2) };
  const temperature = slider("pg_heat", { min: -1, max: 1, step: 0.05, value: 0, ...powers, onInput: () => drawTemperature() });
  const scoreSliders = SCORES.map((value, at) => {
    const format = (one) => `s${"₀₁₂₃₄"[at]} = ${formatNumber(one, 2)}`;
    return slider("pg_score", { min: -4, max: 4, step: 0.1, value, format, onInput: () => drawTemperature() });
  });
  const temperatureBars = el("div", {});
  const temperatureText = el("p", { class: "numbers", "aria-live": "polite" });
  const width = slider("pg_d", { min: 0, max: 10, value: 6, from: (at) => 2 ** at, format: (value) => `d = ${value}`, onInput: () => drawScaling() });
  const scaling = el("input", { type: "checkbox", id: "pg-root", checked: true });
  scaling.checked = true;
  const divide = el("label", { class: "pg-check" }, scaling, el("span", { t: "pg_divide" }));
  const scalingBars = el("div", {});
  const scalingText = el("p", { class: "numbers", "aria-live": "polite" });
  const explanation = el("p", { class: "hint" });
  scaling.addEventListener("change", drawScaling);

  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "pg_softmax" }),
    formulas("p_j = exp(s_j / τ) / Σ_k exp(s_k / τ)"),
    el("p", { class: "hint", t: "pg_softmax_say" }),
    el("div", { class: "pg-pair" }, el("div", { class: "pg-pulls" }, temperature.root, ...scoreSliders.map((one) => one.root)), el("div", {}, temperatureBars, temperatureText)),
    el("h2", { class: "pg-next", t: "pg_root" }),
    formulas("q, k ∼ N(0, 1):", "std(q · k) = √d,", "std(q · k / √d) = 1"),
    el("div", { class: "pg-pair" }, el("div", { class: "pg-pulls" }, width.root, divide, explanation), el("div", {}, scalingBars, scalingText)),
  );

  function drawTemperature() {
    const found = softmax(
      scoreSliders.map((one) => one.read()),
      temperature.read(),
    );
    temperatureBars.replaceChildren(bars(found.map((share, at) => ({ name: `p${"₀₁₂₃₄"[at]}`, share, label: percent(share), strong: true }))));
    temperatureText.textContent = t("pg_told", { bits: formatNumber(entropy(found), 3), slope: formatNumber(slope(found), 3) });
  }

  function drawScaling() {
    const d = width.read();
    const scores = randomScores(d, KEYS).map((one) => (scaling.checked ? one / Math.sqrt(d) : one));
    const found = softmax(scores);
    scalingBars.replaceChildren(bars(found.map((share, at) => ({ name: formatNumber(scores[at], 2), share, label: percent(share), strong: true }))));
    const spread = Math.sqrt(scores.reduce((sum, one) => sum + one * one, 0) / KEYS);
    scalingText.textContent = t("pg_root_told", { spread: formatNumber(spread, 2), bits: formatNumber(entropy(found), 3), slope: formatNumber(slope(found), 2) });
    explanation.textContent = t(slope(found) < 0.25 ? "pg_saturated" : "pg_alive");
  }

  return {
    root,
    draw() {
      drawTemperature();
      drawScaling();
    },
  };
}
