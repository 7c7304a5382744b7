// A grid to choose a layer and a head: a row per layer, a column per head, darker where the entropy is lower.
//
//   ↑ ↓ layer    ← → head
import { el } from "../../core/dom.js";
import { formatNumber } from "../../core/format.js";
import { paint } from "../../core/heatmap.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class HeadPicker {
  /** onChoose(layer, head) is called when the user picks another head with the pointer or the arrow keys. */
  constructor(t, onChoose) {
    Object.assign(this, { t, onChoose, layers: 1, heads: 1, entropy: [[0]], layer: 0, head: 0, cellSize: 18 });
    this.canvas = el("canvas", { tabindex: 0, role: "application", class: "pick-canvas", "aria-roledescription": "grid" });
    this.mark = el("div", { class: "map-cell" });
    this.label = el("p", { class: "pick-told numbers", "aria-live": "polite" });
    const frame = el("div", { class: "pick-frame" }, this.canvas, this.mark);
    this.root = el("div", { class: "pick" }, el("div", { class: "scroll" }, frame), this.label);
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const index = (offset) => Math.floor(offset / this.cellSize);
      this.move(index(event.clientY - box.top), index(event.clientX - box.left));
    });
    this.canvas.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      this.move(this.layer + move[0], this.head + move[1]);
    });
  }

  show({ layers, heads, entropy }) {
    Object.assign(this, { layers, heads, entropy, cellSize: heads > 24 || layers > 24 ? 12 : 18 });
    const bits = entropy.flat().map(Number);
    const most = Math.max(1e-6, ...bits.filter(Number.isFinite));
    const values = Float32Array.from(bits, (one) => (Number.isNaN(one) ? NaN : 1 - (0.92 * one) / most));
    paint(this.canvas, { values, rows: layers, columns: heads, limit: 1, scale: 8 });
    this.canvas.style.setProperty("width", `${heads * this.cellSize}px`);
    this.canvas.style.setProperty("height", `${layers * this.cellSize}px`);
    this.root.style.setProperty("--cell", `${this.cellSize}px`);
    this.choose(Math.min(this.layer, layers - 1), Math.min(this.head, heads - 1));
  }

  choose(layer, head) {
    Object.assign(this, { layer, head });
    this.mark.style.setProperty("translate", `${head * this.cellSize}px ${layer * this.cellSize}px`);
    const bits = formatNumber(this.entropy[layer]?.[head] ?? NaN, 2);
    this.label.textContent = this.t("look_chosen", { layer, head, bits });
    this.canvas.setAttribute("aria-label", this.label.textContent);
  }

  move(row, column) {
    const layer = Math.min(this.layers - 1, Math.max(0, row));
    const head = Math.min(this.heads - 1, Math.max(0, column));
    if (layer === this.layer && head === this.head) return;
    this.choose(layer, head);
    this.onChoose(layer, head);
  }
}
