// Positions: the table of a kind, one column of it as a wave, and how alike two places are.
import { curves } from "./charts.js";
import { el } from "./dom.js";
import { figure, formula, whole } from "./figures.js";
import { paint } from "./heatmap.js";
import { KINDS, products } from "./playground_sums.js";
import { slider } from "./sliders.js";

const SIZE = { width: 420, height: 190 };
const FORMULA = {
  sinusoidal: "PE(i, 2d) = sin(i / b^{2d/D}),  PE(i, 2d+1) = cos(i / b^{2d/D})",
  rotary: "(q_{2d}, q_{2d+1}) ↦ R(i θ_d) (q_{2d}, q_{2d+1}),  θ_d = b^{−2d/D}",
  learned: "P_i ∈ R^{D}",
};

export function makePositions({ t, keep }) {
  const kept = keep("kind", "sinusoidal");
  const kinds = el("div", { class: "tabs", role: "group", "t-label": "pg_kind" });
  const width = slider("pg_width", { min: 4, max: 128, step: 4, value: 64, onInput: () => draw() });
  const length = slider("pg_length", { min: 8, max: 256, step: 8, value: 96, onInput: () => draw() });
  const powers = { from: (at) => 10 ** at, told: (value) => whole(Math.round(value)) };
  const base = slider("pg_base", { min: 1, max: 6, step: 0.25, value: 4, ...powers, onInput: () => draw() });
  const plane = slider("pg_column", { min: 0, max: 63, value: 6, onInput: () => draw() });
  const table = el("canvas", { class: "pg-table", role: "img" });
  const alike = el("canvas", { class: "pg-alike", role: "img" });
  const readout = el("p", { class: "hint numbers", "aria-live": "polite" });
  const waves = el("div", { class: "pg-waves" });
  const fall = el("div", { class: "pg-waves" });
  const line = el("p", { class: "formulas" });
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
    el("div", { class: "pg-sliders" }, width.root, length.root, base.root, plane.root),
    el("div", { class: "pg-pair" }, figureBox("pg_table", table, readout), figureBox("pg_alike", alike)),
    el("div", { class: "pg-pair" }, figureBox("pg_wave", waves), figureBox("pg_fall", fall)),
  );

  function draw() {
    const kind = Object.hasOwn(KINDS, kept.get()) ? kept.get() : "sinusoidal";
    for (const button of kinds.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    const [D, N, b] = [width.read(), length.read(), base.read()];
    base.root.hidden = kind === "learned";
    now = KINDS[kind](N, D, b);
    plane.input.max = String(now.columns - 1);
    const column = Math.min(plane.read(), now.columns - 1);
    line.replaceChildren(formula(FORMULA[kind]));
    say.textContent = t(`pg_${kind}_say`);
    paint(table, { ...now, signed: true, most: kind === "learned" ? 3 : 1 });
    table.setAttribute("aria-label", t("pg_table"));
    const both = products(kind, N, D, b);
    paint(alike, { ...both, signed: true, most: 1 });
    alike.setAttribute("aria-label", t("pg_alike"));
    const wave = Array.from({ length: N }, (_, i) => [i, now.values[i * now.columns + column]]);
    const ys = kind === "learned" ? [-3.2, 3.2] : [-1.1, 1.1];
    waves.replaceChildren(curves({ lines: [{ points: wave }], ys, ...SIZE, xName: t("pg_place"), label: t("pg_wave") }));
    const drop = Array.from({ length: N }, (_, gap) => [gap, both.values[gap]]);
    const fallen = [{ points: drop, kind: "second" }];
    fall.replaceChildren(curves({ lines: fallen, ...SIZE, xName: t("pg_gap"), label: t("pg_fall") }));
    readout.textContent = t("pg_sizes", { rows: N, columns: now.columns });
  }

  table.addEventListener("pointermove", (event) => {
    const i = Math.min(now.rows - 1, Math.floor((event.offsetY / table.clientHeight) * now.rows));
    const d = Math.min(now.columns - 1, Math.floor((event.offsetX / table.clientWidth) * now.columns));
    readout.textContent = t("pg_cell", { i, d, value: figure(now.values[i * now.columns + d]) });
  });
  return { root, draw };
}
