// The controls of sampling, and their fields in a request.
import { el } from "../../core/dom.js";

// Sliders start at the defaults of chumoku/decoding/defaults.py. Zero, or for top-p one, switches a rule off.
const SLIDERS = [
  { name: "temperature", key: "ch_temperature", min: 0, max: 2, step: 0.05, start: 0.3 },
  { name: "topK", key: "ch_top_k", min: 0, max: 100, step: 1, start: 0, off: 0 },
  { name: "topP", key: "ch_top_p", min: 0.05, max: 1, step: 0.01, start: 0.9, off: 1 },
  { name: "minP", key: "ch_min_p", min: 0, max: 1, step: 0.01, start: 0, off: 0 },
];
const TOKENS = 256;
const MAX_TOKENS = 4096;
const MAX_SEED = 2 ** 31 - 1;

export class SamplingControls {
  constructor(context, onChange) {
    this.t = context.t;
    this.stored = context.storedValue("sampling", "{}");
    this.onChange = onChange;
    this.fields = {};
    const integer = { type: "number", step: 1, oninput: () => this.onInput() };
    this.seed = el("input", { ...integer, min: 0, max: MAX_SEED, "t-placeholder": "ch_seed_hint" });
    this.tokens = el("input", { ...integer, min: 1, max: MAX_TOKENS });
    this.root = el(
      "div",
      { class: "sampling" },
      ...SLIDERS.map((one) => this.slider(one)),
      el("label", { class: "figure-row" }, el("span", { t: "ch_tokens" }), this.tokens),
      el("label", { class: "figure-row" }, el("span", { t: "ch_seed" }), this.seed),
      el("button", { type: "button", class: "quiet reset", t: "ch_reset", onclick: () => this.fill({}) }),
    );
    this.fill(parseStored(this.stored.get()));
  }

  slider({ name, key, min, max, step }) {
    const label = el("output", { class: "numbers" });
    const input = el("input", { type: "range", min, max, step, oninput: () => this.onInput() });
    this.fields[name] = { input, label };
    return el("label", { class: "slider" }, el("span", { t: key }), input, label);
  }

  fill(values) {
    for (const { name, start } of SLIDERS) this.fields[name].input.value = String(values[name] ?? start);
    this.tokens.value = String(values.tokens ?? TOKENS);
    this.seed.value = values.seed ?? "";
    this.onInput();
  }

  onInput() {
    this.updateLabels();
    const values = Object.fromEntries(SLIDERS.map(({ name }) => [name, this.fields[name].input.value]));
    this.stored.set(JSON.stringify({ ...values, tokens: this.tokens.value, seed: this.seed.value }));
    this.onChange();
  }

  /** Update the values beside the sliders. */
  updateLabels() {
    for (const { name, off, step } of SLIDERS) {
      const value = Number(this.fields[name].input.value);
      this.fields[name].label.textContent = value === off ? this.t("ch_off") : value.toFixed(step < 1 ? 2 : 0);
    }
  }

  /** The rules for `applySampling`; null: off. */
  rules() {
    const values = SLIDERS.map(({ name, off }) => [name, off, Number(this.fields[name].input.value)]);
    return Object.fromEntries(values.map(([name, off, value]) => [name, value === off ? null : value]));
  }

  /** The same as fields of a request. */
  requestFields() {
    const { temperature, topK, topP, minP } = this.rules();
    const integer = (field, max) => Math.min(max, Math.max(0, Math.round(Number(field.value))));
    return {
      temperature,
      max_tokens: Math.max(1, integer(this.tokens, MAX_TOKENS) || TOKENS),
      ...(topK === null ? {} : { top_k: topK }),
      top_p: topP ?? 1, // always sent, because the server has another default
      ...(minP === null ? {} : { min_p: minP }),
      ...(this.seed.value === "" ? {} : { seed: integer(this.seed, MAX_SEED) }),
    };
  }
}

function parseStored(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
