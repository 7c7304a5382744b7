// Softmax: scores that can be pulled, a temperature, and why scores are divided by √d.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { figure, formulas } from "../../core/figures.js";
import { entropy, randomScores, slope, softmax } from "./formulas.js";
import { slider } from "../../core/sliders.js";

const SCORES = [2.2, 1.4, 0.6, 0, -0.8];
const KEYS = 12;

export function makeSoftmax({ t }) {
  const tenths = { from: (at) => 10 ** at, told: (value) => figure(value, 2) };
  const heat = slider("pg_heat", { min: -1, max: 1, step: 0.05, value: 0, ...tenths, onInput: () => drawHeat() });
  const pulls = SCORES.map((value, at) => {
    const told = (one) => `s${"₀₁₂₃₄"[at]} = ${figure(one, 2)}`;
    return slider("pg_score", { min: -4, max: 4, step: 0.1, value, told, onInput: () => drawHeat() });
  });
  const shares = el("div", {});
  const heatTold = el("p", { class: "numbers", "aria-live": "polite" });
  const width = slider("pg_d", { min: 0, max: 10, value: 6, from: (at) => 2 ** at, told: (value) => `d = ${value}`, onInput: () => drawRoot() });
  const root_ = el("input", { type: "checkbox", id: "pg-root", checked: true });
  root_.checked = true;
  const divide = el("label", { class: "pg-check" }, root_, el("span", { t: "pg_divide" }));
  const rooted = el("div", {});
  const rootTold = el("p", { class: "numbers", "aria-live": "polite" });
  const say = el("p", { class: "hint" });
  root_.addEventListener("change", drawRoot);

  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "pg_softmax" }),
    formulas("p_j = exp(s_j / τ) / Σ_k exp(s_k / τ)"),
    el("p", { class: "hint", t: "pg_softmax_say" }),
    el("div", { class: "pg-pair" }, el("div", { class: "pg-pulls" }, heat.root, ...pulls.map((one) => one.root)), el("div", {}, shares, heatTold)),
    el("h2", { class: "pg-next", t: "pg_root" }),
    formulas("q, k ∼ N(0, 1):", "std(q · k) = √d,", "std(q · k / √d) = 1"),
    el("div", { class: "pg-pair" }, el("div", { class: "pg-pulls" }, width.root, divide, say), el("div", {}, rooted, rootTold)),
  );

  function drawHeat() {
    const found = softmax(
      pulls.map((one) => one.read()),
      heat.read(),
    );
    shares.replaceChildren(bars(found.map((share, at) => ({ name: `p${"₀₁₂₃₄"[at]}`, share, told: percent(share), strong: true }))));
    heatTold.textContent = t("pg_told", { bits: figure(entropy(found), 3), slope: figure(slope(found), 3) });
  }

  function drawRoot() {
    const d = width.read();
    const scores = randomScores(d, KEYS).map((one) => (root_.checked ? one / Math.sqrt(d) : one));
    const found = softmax(scores);
    rooted.replaceChildren(bars(found.map((share, at) => ({ name: figure(scores[at], 2), share, told: percent(share), strong: true }))));
    const spread = Math.sqrt(scores.reduce((sum, one) => sum + one * one, 0) / KEYS);
    rootTold.textContent = t("pg_root_told", { spread: figure(spread, 2), bits: figure(entropy(found), 3), slope: figure(slope(found), 2) });
    say.textContent = t(slope(found) < 0.25 ? "pg_saturated" : "pg_alive");
  }

  return {
    root,
    draw() {
      drawHeat();
      drawRoot();
    },
  };
}
