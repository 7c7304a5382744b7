// Temperature, top-k and top-p: what is left of a distribution, and what a hundred draws from it give.
import { bars } from "../../chumoku/viewer/core/bars.js";
import { button, el, percent } from "../../chumoku/viewer/core/dom.js";
import { formatNumber, formulas } from "../../chumoku/viewer/core/format.js";
import { slider } from "../../chumoku/viewer/core/sliders.js";
import { makeRandom } from "../../chumoku/viewer/in_page/decoding/random.js";
import { draw as drawToken, keepTokens } from "../../chumoku/viewer/in_page/decoding/sampling.js";

const TOKENS = ["mikan", "oranges", "fruit", "it", "rice", "lunch", "kotatsu", "quietly"];
const LOGITS = Float32Array.from([3, 2.4, 1.5, 1, 0.3, -0.2, -1, -1.8]);
const DRAWS = 100;

const strings = {
  en: {
    sampling_title: "The next token after “I eat”",
    sampling_heat: "Temperature T",
    sampling_k: "top-k",
    sampling_p: "top-p",
    sampling_all: "all",
    sampling_share: "Probability; faint tokens cannot be drawn",
    sampling_counts: "Draws, out of {count}",
    sampling_again: "Draw again",
    sampling_left: "{left} of {count} tokens are left.",
  },
  ja: {
    sampling_title: "「I eat」の次のトークン",
    sampling_heat: "温度 T",
    sampling_k: "top-k",
    sampling_p: "top-p",
    sampling_all: "全部",
    sampling_share: "確率。薄いトークンは選ばれません",
    sampling_counts: "{count} 回引いた結果",
    sampling_again: "引き直す",
    sampling_left: "{count} 個のうち {left} 個のトークンが残っています。",
  },
};

/** The probability of each token; 0 for those that cannot be drawn. */
function distribution(options) {
  const weights = Float64Array.from(LOGITS, (logit) => Math.exp((logit - LOGITS[0]) / options.temperature));
  const kept = keepTokens(LOGITS, weights, options);
  const sum = kept.reduce((total, token) => total + weights[token], 0);
  return TOKENS.map((_, token) => (kept.includes(token) ? weights[token] / sum : 0));
}

function make({ t }) {
  const onInput = () => draw();
  const heat = slider("sampling_heat", { min: -1, max: 1, step: 0.05, value: 0, from: (at) => 10 ** at, format: (value) => formatNumber(value, 2), onInput });
  const most = slider("sampling_k", { min: 1, max: TOKENS.length, value: TOKENS.length, format: (value) => (value === TOKENS.length ? t("sampling_all") : String(value)), onInput });
  const mass = slider("sampling_p", { min: 0.05, max: 1, step: 0.05, value: 1, format: (value) => formatNumber(value, 2), onInput });
  const [shares, counts, countsCaption] = [el("div"), el("div"), el("figcaption")];
  const left = el("p", { class: "numbers", "aria-live": "polite" });
  let seed = 1;
  const again = button("sampling_again", () => {
    seed += 1;
    draw();
  });
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "sampling_title" }),
    formulas("P(w) = exp(ℓ_w / T) / Σ_v exp(ℓ_v / T)"),
    el("div", { class: "pg-sliders" }, heat.root, most.root, mass.root),
    el("div", { class: "pg-pair" }, el("figure", {}, el("figcaption", { t: "sampling_share" }), shares, left), el("figure", {}, countsCaption, counts, again)),
  );

  function draw() {
    const options = { temperature: heat.read(), top_k: most.read(), top_p: mass.read() };
    const found = distribution(options);
    const random = makeRandom(seed);
    const drawn = TOKENS.map(() => 0);
    for (let number = 0; number < DRAWS; number++) drawn[drawToken(LOGITS, options, random)] += 1;
    const row = (name, share, label, faint) => ({ name, share, label, faint, strong: !faint });
    shares.replaceChildren(bars(TOKENS.map((name, at) => row(name, found[at], percent(found[at]), found[at] === 0))));
    counts.replaceChildren(bars(TOKENS.map((name, at) => row(name, drawn[at] / DRAWS, String(drawn[at]), drawn[at] === 0))));
    countsCaption.textContent = t("sampling_counts", { count: DRAWS });
    left.textContent = t("sampling_left", { left: found.filter((share) => share > 0).length, count: TOKENS.length });
  }

  return { root, draw };
}

export const figure = { strings, make };
