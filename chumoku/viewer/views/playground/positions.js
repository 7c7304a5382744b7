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
  alibi: ["s_{ij} = q_i · k_j / √D − m_h |i − j|,", "m_h = 2^{−8(h+1)/H},  h = 0 … H − 1"],
  none: ["x_i = E_i"],
};
const BY_DISTANCE = ["relative", "alibi"]; // kinds with a row per distance, and texts of their own
const FULL_COLOR = 8; // the bias of ALiBi with full color: e^−8 leaves nearly no weight
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
    this.heads = slider("pg_heads", { min: 1, max: 16, value: 8, onInput });
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
    const sliders = [this.width, this.heads, this.length, this.base, this.clip, this.column].map((one) => one.root);
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
    const [width, heads, length, base, clip] = [this.width, this.heads, this.length, this.base, this.clip].map((one) => one.read());
    const sizes = { width, heads, length, base, clip };
    const random = RANDOM.includes(kind);
    const alibi = kind === "alibi";
    for (const button of this.kinds.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    this.base.root.hidden = random || alibi || kind === "none";
    this.width.root.hidden = alibi;
    this.heads.root.hidden = !alibi;
    this.clip.root.hidden = kind !== "relative";
    this.shown = KINDS[kind](sizes);
    this.column.input.max = String(this.shown.columns - 1);
    this.formula.replaceChildren(formulas(...FORMULA[kind]));
    this.explanation.textContent = t(`pg_${kind}_say`);
    const column = Math.min(this.column.read(), this.shown.columns - 1);
    for (const [name, caption] of Object.entries(captions)) caption.textContent = this.textOf(name, { column });
    const similarity = products(kind, { ...sizes, column });
    paint(this.table, { ...this.shown, signed: true, limit: random ? 3 : alibi ? FULL_COLOR : 1 });
    paint(this.similarity, { ...similarity, signed: true, limit: alibi ? FULL_COLOR : 1 });
    this.table.setAttribute("aria-label", captions.table.textContent);
    this.similarity.setAttribute("aria-label", captions.alike.textContent);
    this.drawCurves(similarity, { kind, random, column });
  }

  /** A text about the table of the current kind. */
  textOf(name, values) {
    const kind = this.kind();
    return this.t(`pg_${name}${BY_DISTANCE.includes(kind) ? `_${kind}` : ""}`, values);
  }

  /** The number of the first row, a position or a distance. */
  firstRow() {
    return this.kind() === "relative" ? -this.clip.read() : 0;
  }

  /** The values of a column of the table, as points of a chart. */
  columnPoints(column) {
    const { rows, columns, values } = this.shown;
    return Array.from({ length: rows }, (_, i) => [this.firstRow() + i, values[i * columns + column]]);
  }

  drawCurves(similarity, { kind, random, column }) {
    const { t } = this;
    const { rows, columns } = this.shown;
    const alibi = kind === "alibi";
    const ys = alibi ? null : random ? [-3.2, 3.2] : [-1.1, 1.1];
    const waveOptions = { ys, xName: t(BY_DISTANCE.includes(kind) ? "pg_gap" : "pg_place"), label: t("pg_wave") };
    this.wave.replaceChildren(lineChart({ lines: [{ points: this.columnPoints(column) }], ...SIZE, ...waveOptions }));
    const decay = Array.from({ length: similarity.rows }, (_, gap) => [gap, similarity.values[gap * similarity.columns]]);
    const lines = alibi ? Array.from({ length: columns }, (_, head) => this.columnPoints(head)) : [decay];
    const decayOptions = { ys: kind === "none" ? [-1.1, 1.1] : null, xName: t("pg_gap"), label: this.captions.fall.textContent };
    this.decay.replaceChildren(lineChart({ lines: lines.map((points) => ({ points, kind: "second" })), ...SIZE, ...decayOptions }));
    this.readout.textContent = this.textOf("sizes", { rows, columns });
  }

  /** Show the value under the pointer. */
  readCell(event) {
    const { rows, columns, values } = this.shown;
    const i = Math.min(rows - 1, Math.floor((event.offsetY / this.table.clientHeight) * rows));
    const d = Math.min(columns - 1, Math.floor((event.offsetX / this.table.clientWidth) * columns));
    this.readout.textContent = this.textOf("cell", { i: this.firstRow() + i, d, value: formatNumber(values[i * columns + d]) });
  }
}
