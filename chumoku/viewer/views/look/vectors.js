// Vectors as colored strips with numbers, stacks of vectors, and the table from scores to attention weights.
import { el, percent } from "../../core/dom.js";
import { formatNumber, toNumber } from "../../core/format.js";
import { maxAbs, paint } from "../../core/heatmap.js";
import { fadeEdges } from "../../core/overflow.js";

const SHOWN_NUMBERS = 4;

/** A vector as a strip with its first numbers, or the number under the pointer; `of`: the full length, if it was cut. */
export function strip(name, values, { of = null, limit = null } = {}) {
  const numbers = Float32Array.from(values, toNumber);
  const canvas = el("canvas", { class: "strip", role: "img", "aria-label": name });
  paint(canvas, { values: numbers, rows: 1, columns: numbers.length, scale: 8, signed: true, limit });
  const preview = `${[...values].slice(0, SHOWN_NUMBERS).map((one) => formatNumber(one)).join("  ")}${values.length > SHOWN_NUMBERS ? " …" : ""}`;
  const readout = el("span", { class: "strip-figures numbers" }, preview);
  canvas.addEventListener("pointermove", (event) => {
    const at = Math.min(values.length - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * values.length)));
    readout.textContent = `[${at}] = ${formatNumber(values[at], 4)}`;
  });
  canvas.addEventListener("pointerleave", () => (readout.textContent = preview));
  const count = of && of > values.length ? el("span", { class: "hint numbers" }, ` ${values.length} / ${of}`) : null;
  return el("div", { class: "strip-line" }, el("span", { class: "strip-name" }, name, count), canvas, readout);
}

/** One vector per token: a row each. */
export function stack(names, table, { faint = [], label = "" } = {}) {
  const columns = table[0]?.length ?? 0;
  const values = Float32Array.from(table.flat(), toNumber);
  const canvas = el("canvas", { class: "stack", role: "img", "aria-label": label });
  paint(canvas, { values, rows: table.length, columns, scale: 4, signed: true, limit: maxAbs(values) });
  canvas.style.setProperty("height", `${table.length * 18}px`);
  canvas.addEventListener("pointermove", (event) => {
    const at = (offset, size, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
    const [row, column] = [at(event.offsetY, canvas.clientHeight, table.length), at(event.offsetX, canvas.clientWidth, columns)];
    canvas.title = `${names[row]} [${column}] = ${formatNumber(table[row][column], 4)}`;
  });
  const rows = names.map((name, at) => el("span", { class: faint[at] ? "masked" : null, title: name }, name));
  return fadeEdges(el("div", { class: "stack-box" }, el("div", { class: "stack-names", "aria-hidden": "true" }, ...rows), canvas));
}

/** q·k, ÷ √K, mask, softmax: a row for each key token. */
export function scores(group, names, t) {
  const biased = group.bias !== null && group.bias !== undefined;
  const head = ["look_token", "look_dot", "look_scaled", ...(biased ? ["look_bias"] : []), "look_weight"];
  const table = el("table", { class: "scores numbers" }, el("thead", {}, el("tr", {}, ...head.map((key) => el("th", { scope: "col", t: key })))));
  const body = el("tbody");
  const largest = Math.max(1e-9, ...group.weights.map(toNumber).filter(Number.isFinite));
  group.scores.forEach((score, at) => {
    const masked = group.masked[at];
    const fill = el("span", { class: "fill" });
    fill.style.setProperty("width", `${(100 * (toNumber(group.weights[at]) || 0)) / largest}%`);
    const numbers = [formatNumber(score), masked ? "−∞" : formatNumber(group.scaled[at]), ...(biased ? [formatNumber(group.bias[at])] : [])];
    const weight = masked ? el("span", { class: "hint", t: "look_masked" }) : el("span", {}, percent(toNumber(group.weights[at])));
    const last = el("td", { class: "weight" }, el("span", { class: "track", "aria-hidden": "true" }, fill), weight);
    const cells = numbers.map((text) => el("td", { class: text === "NaN" ? "nan" : null }, text));
    body.append(el("tr", { class: masked ? "masked" : null }, el("th", { scope: "row", title: names[at] }, names[at]), ...cells, last));
  });
  table.append(body);
  const box = fadeEdges(el("div", { class: "scores-box" }, table));
  const best = body.rows[group.weights.map(toNumber).indexOf(largest)];
  // Scroll to the largest weight.
  if (best) requestAnimationFrame(() => (box.scrollTop = best.offsetTop - box.clientHeight / 2));
  return box;
}
