// Layer and head, chosen on a small picture of the model: a row a layer, a column a head, shaded by how sharply it looks.
//
//   ↑ ↓ layer    ← → head
import { el } from "../../core/dom.js";
import { figure } from "../../core/figures.js";
import { paint } from "../../core/heatmap.js";

/** → { root, show({ layers, heads, entropy }), choose(layer, head) }; onChoose(layer, head) by pointer and arrow keys. */
export function makePick(t, onChoose) {
  const canvas = el("canvas", { tabindex: 0, role: "application", class: "pick-canvas", "aria-roledescription": "grid" });
  const mark = el("div", { class: "map-cell" });
  const told = el("p", { class: "pick-told numbers", "aria-live": "polite" });
  const root = el("div", { class: "pick" }, el("div", { class: "scroll" }, el("div", { class: "pick-frame" }, canvas, mark)), told);
  let now = { layers: 1, heads: 1, entropy: [[0]] };
  let [layer, head, size] = [0, 0, 18];

  function show(next) {
    now = next;
    size = now.heads > 24 || now.layers > 24 ? 12 : 18;
    // Sharp heads are dark: one place looked at is 0 bits.
    const bits = now.entropy.flat().map(Number);
    const most = Math.max(1e-6, ...bits.filter(Number.isFinite));
    const values = Float32Array.from(bits, (one) => (Number.isNaN(one) ? NaN : 1 - (0.92 * one) / most));
    paint(canvas, { values, rows: now.layers, columns: now.heads, most: 1, scale: 8 });
    for (const [name, value] of [["width", now.heads * size], ["height", now.layers * size]]) canvas.style.setProperty(name, `${value}px`);
    root.style.setProperty("--cell", `${size}px`);
    choose(Math.min(layer, now.layers - 1), Math.min(head, now.heads - 1));
  }

  function choose(nextLayer, nextHead) {
    [layer, head] = [nextLayer, nextHead];
    mark.style.setProperty("translate", `${head * size}px ${layer * size}px`);
    const bits = figure(now.entropy[layer]?.[head] ?? NaN, 2);
    told.textContent = t("look_chosen", { layer, head, bits });
    canvas.setAttribute("aria-label", told.textContent);
  }

  function move(nextLayer, nextHead) {
    const to = [Math.min(now.layers - 1, Math.max(0, nextLayer)), Math.min(now.heads - 1, Math.max(0, nextHead))];
    if (to[0] === layer && to[1] === head) return;
    choose(...to);
    onChoose(...to);
  }

  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    move(Math.floor((event.clientY - box.top) / size), Math.floor((event.clientX - box.left) / size));
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!moves[event.key]) return;
    event.preventDefault();
    move(layer + moves[event.key][0], head + moves[event.key][1]);
  });
  return { root, show, choose, redraw: () => show(now) };
}
