// Positions: the table of a kind, one column of it as a wave, and how alike two places are.
import { curves } from "../../core/charts.js";
import { el } from "../../core/dom.js";
import { figure, formulas, whole } from "../../core/figures.js";
import { paint } from "../../core/heatmap.js";
import { KINDS, products } from "./formulas.js";
import { slider } from "../../core/sliders.js";

const SIZE = { width: 420, height: 190 };
const FORMULA = {
  sinusoidal: ["PE(i, 2d) = sin(i / b^{2d/D}),", "PE(i, 2d+1) = cos(i / b^{2d/D})"],
  rotary: ["(q_{2d}, q_{2d+1}) ↦ R(i θ_d) (q_{2d}, q_{2d+1}),", "θ_d = b^{−2d/D}"],
  learned: ["P_i ∈ R^{D}"],
  relative: ["s_{ij} = (q_i · k_j + q_i · r_{i−j}) / √D,", "−c ≤ i − j ≤ c"],
  none: ["x_i = E_i"],
};
const RANDOM = ["learned", "relative"]; // tables that begin as noise

export function makePositions({ t, keep }) {
  const kept = keep("kind", "sinusoidal");
  const kinds = el("div", { class: "tabs", role: "group", "t-label": "pg_kind" });
  const width = slider("pg_width", { min: 4, max: 128, step: 4, value: 64, onInput: () => draw() });
  const length = slider("pg_length", { min: 8, max: 256, step: 8, value: 96, onInput: () => draw() });
  const powers = { from: (at) => 10 ** at, told: (value) => whole(Math.round(value)) };
  const base = slider("pg_base", { min: 1, max: 6, step: 0.25, value: 4, ...powers, onInput: () => draw() });
  const clip = slider("pg_clip", { min: 1, max: 64, value: 16, onInput: () => draw() });
  const plane = slider("pg_column", { min: 0, max: 63, value: 6, onInput: () => draw() });
  const table = el("canvas", { class: "pg-table", role: "img" });
  const alike = el("canvas", { class: "pg-alike", role: "img" });
  const readout = el("p", { class: "hint numbers", "aria-live": "polite" });
  const waves = el("div", { class: "pg-waves" });
  const fall = el("div", { class: "pg-waves" });
  const line = el("div");
  const names = { table: el("figcaption"), alike: el("figcaption"), fall: el("figcaption") };
  const say = el("p", { class: "hint" });
  let now = null;

  for (const name of Object.keys(KINDS))
    kinds.append(
      el("button", {
        type: "button",
        t: `pg_${name}`,
        "data-kind": name,
        onclick: () => {
          kept.set(name);
          draw();
        },
      }),
    );
  const figureBox = (key, ...inside) => el("figure", {}, el("figcaption", { t: key }), ...inside);
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "pg_positions" }),
    kinds,
    line,
    say,
    el("div", { class: "pg-sliders" }, width.root, length.root, base.root, clip.root, plane.root),
    el("div", { class: "pg-pair" }, el("figure", {}, names.table, table, readout), el("figure", {}, names.alike, alike)),
    el("div", { class: "pg-pair" }, figureBox("pg_wave", waves), el("figure", {}, names.fall, fall)),
  );

  function draw() {
    const kind = Object.hasOwn(KINDS, kept.get()) ? kept.get() : "sinusoidal";
    for (const button of kinds.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    const sizes = { width: width.read(), length: length.read(), base: base.read(), clip: clip.read() };
    const random = RANDOM.includes(kind);
    base.root.hidden = random || kind === "none";
    clip.root.hidden = kind !== "relative";
    now = KINDS[kind](sizes);
    plane.input.max = String(now.columns - 1);
    const column = Math.min(plane.read(), now.columns - 1);
    line.replaceChildren(formulas(...FORMULA[kind]));
    say.textContent = t(`pg_${kind}_say`);
    paint(table, { ...now, signed: true, most: random ? 3 : 1 });
    const both = products(kind, sizes);
    paint(alike, { ...both, signed: true, most: 1 });
    for (const [name, caption] of Object.entries(names)) caption.textContent = t(`pg_${name}${kind === "relative" ? "_relative" : ""}`);
    table.setAttribute("aria-label", names.table.textContent);
    alike.setAttribute("aria-label", names.alike.textContent);
    // Rows are places from 0, or distances from −c.
    const first = kind === "relative" ? -sizes.clip : 0;
    const wave = Array.from({ length: now.rows }, (_, i) => [first + i, now.values[i * now.columns + column]]);
    const xName = t(first ? "pg_gap" : "pg_place");
    waves.replaceChildren(curves({ lines: [{ points: wave }], ys: random ? [-3.2, 3.2] : [-1.1, 1.1], ...SIZE, xName, label: t("pg_wave") }));
    const drop = Array.from({ length: both.rows }, (_, gap) => [gap, both.values[gap * both.columns]]);
    const ys = kind === "none" ? [-1.1, 1.1] : null;
    fall.replaceChildren(curves({ lines: [{ points: drop, kind: "second" }], ys, ...SIZE, xName: t("pg_gap"), label: names.fall.textContent }));
    readout.textContent = t(first ? "pg_sizes_relative" : "pg_sizes", { rows: now.rows, columns: now.columns });
  }

  table.addEventListener("pointermove", (event) => {
    const i = Math.min(now.rows - 1, Math.floor((event.offsetY / table.clientHeight) * now.rows));
    const d = Math.min(now.columns - 1, Math.floor((event.offsetX / table.clientWidth) * now.columns));
    const relative = kept.get() === "relative";
    readout.textContent = t(relative ? "pg_cell_relative" : "pg_cell", { i: relative ? i - clip.read() : i, d, value: figure(now.values[i * now.columns + d]) });
  });
  return { root, draw };
}
