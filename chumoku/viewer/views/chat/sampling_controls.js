// The controls of sampling, and their fields in a request.
import { el } from "../../core/dom.js";

// Sliders start at the model's own defaults, which the server lists; without them, at those of
// chumoku/decoding/defaults.py. Zero, or for top-p one, switches a rule off. `field`: the name in a request.
const SLIDERS = [
  { name: "temperature", field: "temperature", key: "ch_temperature", min: 0, max: 2, step: 0.05, start: 0.7 },
  { name: "topK", field: "top_k", key: "ch_top_k", min: 0, max: 100, step: 1, start: 0, off: 0 },
  { name: "topP", field: "top_p", key: "ch_top_p", min: 0.05, max: 1, step: 0.01, start: 0.95, off: 1 },
  { name: "minP", field: "min_p", key: "ch_min_p", min: 0, max: 1, step: 0.01, start: 0.3, off: 0 },
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
    this.starts = startValues(null);
    const integer = { type: "number", step: 1 };
    const onInput = (name) => ({ oninput: (event) => this.onInput(name, event.target.value) });
    this.seed = el("input", { ...integer, ...onInput("seed"), min: 0, max: MAX_SEED, "t-placeholder": "ch_seed_hint" });
    this.tokens = el("input", { ...integer, ...onInput("tokens"), min: 1, max: MAX_TOKENS });
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
    const input = el("input", { type: "range", min, max, step, oninput: () => this.onInput(name, input.value) });
    this.fields[name] = { input, label };
    return el("label", { class: "slider" }, el("span", { t: key }), input, label);
  }

  /** Show these values, and the defaults of the model for the others. */
  fill(values) {
    this.values = values;
    for (const { name } of SLIDERS) this.fields[name].input.value = String(values[name] ?? this.starts[name]);
    this.tokens.value = String(values.tokens ?? TOKENS);
    this.seed.value = values.seed ?? "";
    this.changed();
  }

  /** What was not changed by hand becomes the default of this model. */
  setModel(model) {
    this.starts = startValues(model.sampling);
    this.fill(this.values);
  }

  onInput(name, value) {
    this.values = { ...this.values, [name]: value };
    this.changed();
  }

  changed() {
    this.updateLabels();
    this.stored.set(JSON.stringify(this.values));
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
      top_k: topK ?? 0, // always sent, because the model may have another default
      top_p: topP ?? 1,
      min_p: minP ?? 0,
      ...(this.seed.value === "" ? {} : { seed: integer(this.seed, MAX_SEED) }),
    };
  }
}

/** The value of each slider for a model's default options, as in /v1/models: null is off. */
function startValues(sampling) {
  const value = ({ field, start, off }) => (sampling ? (sampling[field] ?? off) : start);
  return Object.fromEntries(SLIDERS.map((one) => [one.name, value(one)]));
}

function parseStored(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
