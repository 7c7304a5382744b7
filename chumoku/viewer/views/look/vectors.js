// Vectors as strips of color with their figures, tables of them, and the row of scores that becomes weights.
import { el, percent } from "../../core/dom.js";
import { figure, numeric } from "../../core/figures.js";
import { largest, paint } from "../../core/heatmap.js";

const FIGURES = 4; // numbers of a vector that are written out

/** A vector: a strip, its first figures, and the one under the pointer. */
export function strip(name, values, { of = null, most = null } = {}) {
  const numbers = Float32Array.from(values, numeric);
  const canvas = el("canvas", { class: "strip", role: "img", "aria-label": name });
  paint(canvas, { values: numbers, rows: 1, columns: numbers.length, scale: 8, signed: true, most });
  const some = `${[...values].slice(0, FIGURES).map((one) => figure(one)).join("  ")}${values.length > FIGURES ? " …" : ""}`;
  const told = el("span", { class: "strip-figures numbers" }, some);
  canvas.addEventListener("pointermove", (event) => {
    const at = Math.min(values.length - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * values.length)));
    told.textContent = `[${at}] = ${figure(values[at], 4)}`;
  });
  canvas.addEventListener("pointerleave", () => (told.textContent = some));
  const count = of && of > values.length ? el("span", { class: "hint numbers" }, ` ${values.length} / ${of}`) : null;
  return el("div", { class: "strip-line" }, el("span", { class: "strip-name" }, name, count), canvas, told);
}

/** A vector for each token: a row each. */
export function stack(names, table, { faint = [], label = "" } = {}) {
  const columns = table[0]?.length ?? 0;
  const values = Float32Array.from(table.flat(), numeric);
  const canvas = el("canvas", { class: "stack", role: "img", "aria-label": label });
  paint(canvas, { values, rows: table.length, columns, scale: 4, signed: true, most: largest(values) });
  canvas.style.setProperty("height", `${table.length * 18}px`);
  const rows = names.map((name, at) => el("span", { class: faint[at] ? "masked" : null, title: name }, name));
  return el("div", { class: "stack-box" }, el("div", { class: "stack-names", "aria-hidden": "true" }, ...rows), canvas);
}

/** q·k, ÷ √K, mask, softmax: a row for each token that could be looked at. */
export function scores(group, names, t) {
  const biased = group.bias !== null && group.bias !== undefined;
  const head = ["look_token", "look_dot", "look_scaled", ...(biased ? ["look_bias"] : []), "look_weight"];
  const table = el("table", { class: "scores numbers" }, el("thead", {}, el("tr", {}, ...head.map((key) => el("th", { scope: "col", t: key })))));
  const body = el("tbody");
  const most = Math.max(1e-9, ...group.weights.map(numeric).filter(Number.isFinite));
  group.scores.forEach((score, at) => {
    const off = group.masked[at];
    const fill = el("span", { class: "fill" });
    fill.style.setProperty("width", `${(100 * (numeric(group.weights[at]) || 0)) / most}%`);
    const figures = [figure(score), off ? "−∞" : figure(group.scaled[at]), ...(biased ? [figure(group.bias[at])] : [])];
    const weight = off ? el("span", { class: "hint", t: "look_masked" }) : el("span", {}, percent(numeric(group.weights[at])));
    const last = el("td", { class: "weight" }, el("span", { class: "track", "aria-hidden": "true" }, fill), weight);
    const cells = figures.map((text) => el("td", { class: text === "NaN" ? "nan" : null }, text));
    body.append(el("tr", { class: off ? "masked" : null }, el("th", { scope: "row", title: names[at] }, names[at]), ...cells, last));
  });
  table.append(body);
  const box = el("div", { class: "scores-box" }, table);
  const best = body.rows[group.weights.map(numeric).indexOf(most)];
  // Of many rows those are in sight first where most is looked.
  if (best) requestAnimationFrame(() => (box.scrollTop = best.offsetTop - box.clientHeight / 2));
  return box;
}
