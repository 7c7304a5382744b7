// Position encodings: the table of a kind, one of its columns as a curve, and the similarity of positions.
import { lineChart } from "../../core/charts.js";
import { el } from "../../core/dom.js";
import { formatInteger, formatNumber, formulas } from "../../core/format.js";
import { paint } from "../../core/heatmap.js";
import { slider } from "../../core/sliders.js";
import { KINDS, products } from "./formulas.js";

const SIZE = { width: 420, height: 190 };
const FORMULA = {
  sinusoidal: ["PE(i, 2d) = sin(i / b^{2d/D}),", "PE(i, 2d+1) = cos(i / b^{2d/D})"],
  rotary: ["(q_{2d}, q_{2d+1}) ↦ R(i θ_d) (q_{2d}, q_{2d+1}),", "θ_d = b^{−2d/D}"],
  learned: ["P_i ∈ R^{D}"],
  relative: ["s_{ij} = (q_i · k_j + q_i · r_{i−j}) / √D,", "−c ≤ i − j ≤ c"],
  none: ["x_i = E_i"],
};
const RANDOM = ["learned", "relative"]; // tables that are random before training

export class Positions {
  constructor({ t, storedValue }) {
    this.t = t;
    this.stored = storedValue("kind", "sinusoidal");
    const onInput = () => this.draw();
    const powers = { from: (at) => 10 ** at, format: (value) => formatInteger(Math.round(value)) };
    this.width = slider("pg_width", { min: 4, max: 128, step: 4, value: 64, onInput });
    this.length = slider("pg_length", { min: 8, max: 256, step: 8, value: 96, onInput });
    this.base = slider("pg_base", { min: 1, max: 6, step: 0.25, value: 4, ...powers, onInput });
    this.clip = slider("pg_clip", { min: 1, max: 64, value: 16, onInput });
    this.column = slider("pg_column", { min: 0, max: 63, value: 6, onInput });
    this.kinds = el("div", { class: "tabs", role: "group", "t-label": "pg_kind" }, ...this.kindButtons());
    this.table = el("canvas", { class: "pg-table", role: "img", onpointermove: (event) => this.readCell(event) });
    this.similarity = el("canvas", { class: "pg-alike", role: "img" });
    this.readout = el("p", { class: "hint numbers", "aria-live": "polite" });
    this.wave = el("div", { class: "pg-waves" });
    this.decay = el("div", { class: "pg-waves" });
    this.formula = el("div");
    this.explanation = el("p", { class: "hint" });
    this.captions = { table: el("figcaption"), alike: el("figcaption"), fall: el("figcaption") };
    this.shown = null; // the table of the current kind
    this.root = this.layout();
  }

  kindButtons() {
    return Object.keys(KINDS).map((kind) => {
      const onclick = () => {
        this.stored.set(kind);
        this.draw();
      };
      return el("button", { type: "button", t: `pg_${kind}`, "data-kind": kind, onclick });
    });
  }

  layout() {
    const { captions } = this;
    const sliders = [this.width, this.length, this.base, this.clip, this.column].map((one) => one.root);
    const pair = (...figures) => el("div", { class: "pg-pair" }, ...figures.map((parts) => el("figure", {}, ...parts)));
    return el(
      "section",
      { class: "card pg" },
      el("h2", { t: "pg_positions" }),
      this.kinds,
      this.formula,
      this.explanation,
      el("div", { class: "pg-sliders" }, ...sliders),
      pair([captions.table, this.table, this.readout], [captions.alike, this.similarity]),
      pair([el("figcaption", { t: "pg_wave" }), this.wave], [captions.fall, this.decay]),
    );
  }

  kind() {
    return Object.hasOwn(KINDS, this.stored.get()) ? this.stored.get() : "sinusoidal";
  }

  draw() {
    const { t, captions } = this;
    const kind = this.kind();
    const sizes = { width: this.width.read(), length: this.length.read(), base: this.base.read(), clip: this.clip.read() };
    const random = RANDOM.includes(kind);
    for (const button of this.kinds.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    this.base.root.hidden = random || kind === "none";
    this.clip.root.hidden = kind !== "relative";
    this.shown = KINDS[kind](sizes);
    this.column.input.max = String(this.shown.columns - 1);
    this.formula.replaceChildren(formulas(...FORMULA[kind]));
    this.explanation.textContent = t(`pg_${kind}_say`);
    for (const [name, caption] of Object.entries(captions)) caption.textContent = t(`pg_${name}${kind === "relative" ? "_relative" : ""}`);
    const similarity = products(kind, sizes);
    paint(this.table, { ...this.shown, signed: true, limit: random ? 3 : 1 });
    paint(this.similarity, { ...similarity, signed: true, limit: 1 });
    this.table.setAttribute("aria-label", captions.table.textContent);
    this.similarity.setAttribute("aria-label", captions.alike.textContent);
    this.drawCurves(similarity, { kind, random, first: kind === "relative" ? -sizes.clip : 0 });
  }

  /** `first`: the number of the first row, a position or a distance. */
  drawCurves(similarity, { kind, random, first }) {
    const { t } = this;
    const { rows, columns, values } = this.shown;
    const column = Math.min(this.column.read(), columns - 1);
    const wave = Array.from({ length: rows }, (_, i) => [first + i, values[i * columns + column]]);
    const waveOptions = { ys: random ? [-3.2, 3.2] : [-1.1, 1.1], xName: t(first ? "pg_gap" : "pg_place"), label: t("pg_wave") };
    this.wave.replaceChildren(lineChart({ lines: [{ points: wave }], ...SIZE, ...waveOptions }));
    const decay = Array.from({ length: similarity.rows }, (_, gap) => [gap, similarity.values[gap * similarity.columns]]);
    const decayOptions = { ys: kind === "none" ? [-1.1, 1.1] : null, xName: t("pg_gap"), label: this.captions.fall.textContent };
    this.decay.replaceChildren(lineChart({ lines: [{ points: decay, kind: "second" }], ...SIZE, ...decayOptions }));
    this.readout.textContent = t(first ? "pg_sizes_relative" : "pg_sizes", { rows, columns });
  }

  /** Show the value under the pointer. */
  readCell(event) {
    const { rows, columns, values } = this.shown;
    const i = Math.min(rows - 1, Math.floor((event.offsetY / this.table.clientHeight) * rows));
    const d = Math.min(columns - 1, Math.floor((event.offsetX / this.table.clientWidth) * columns));
    const relative = this.kind() === "relative";
    const cell = { i: relative ? i - this.clip.read() : i, d, value: formatNumber(values[i * columns + d]) };
    this.readout.textContent = this.t(relative ? "pg_cell_relative" : "pg_cell", cell);
  }
}
