// An enlarged attention map with token names; the pointer or the arrow keys select a cell and show its weight.
import { el, percent } from "./dom.js";
import { paint } from "./heatmap.js";
import { addStrings } from "./i18n.js";
import { strings } from "./map_strings.js";

addStrings(strings);

const MAX_NAMED = 48; // larger maps have no room for token names
const SIDE = 540; // px
const UPRIGHT = /[\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]/; // characters that are not rotated in column names

/** → { root, show(map, layer, head) } */
export function makeMapView(t) {
  const canvas = el("canvas", { tabindex: 0, role: "img", class: "map-canvas" });
  const cell = el("div", { class: "map-cell", hidden: true });
  const frame = el("div", { class: "map-frame" }, canvas, cell);
  const left = el("div", { class: "map-rows", "aria-hidden": "true" });
  const top = el("div", { class: "map-columns", "aria-hidden": "true" });
  const readout = el("p", { class: "map-readout hint numbers", "aria-live": "polite" });
  const root = el("div", { class: "map-view" }, el("div", { class: "scroll" }, el("div", { class: "map-grid" }, el("span"), top, left, frame)), readout);
  let shown = null; // { map, layer, head, size }
  let [row, column] = [0, 0];

  function show(map, layer, head) {
    const [rows, columns] = [map.rows.length, map.columns.length];
    const named = Math.max(rows, columns) <= MAX_NAMED;
    const size = named ? Math.max(15, Math.min(30, Math.floor(SIDE / Math.max(rows, columns)))) : Math.max(1, SIDE / Math.max(rows, columns));
    shown = { map, layer, head, size };
    [row, column] = [Math.min(row, rows - 1), Math.min(column, columns - 1)];
    paint(canvas, { ...map.table(layer, head), scale: named ? 8 : 1 });
    for (const [name, value] of [["width", columns * size], ["height", rows * size]]) canvas.style.setProperty(name, `${value}px`);
    root.style.setProperty("--cell", `${size}px`);
    left.replaceChildren(...(named ? map.rows.map((name) => el("span", { title: name }, name)) : []));
    top.replaceChildren(...(named ? map.columns.map((name) => el("span", { title: name, class: name.length < 2 || UPRIGHT.test(name) ? "upright" : null }, name)) : []));
    cell.hidden = true;
    canvas.setAttribute("aria-label", t("map_label", { layer: layer + (map.first_layer ?? 0), head }));
    readout.textContent = t("map_hint");
  }

  function select(nextRow, nextColumn) {
    if (!shown) return;
    row = Math.min(shown.map.rows.length - 1, Math.max(0, nextRow));
    column = Math.min(shown.map.columns.length - 1, Math.max(0, nextColumn));
    cell.hidden = false;
    cell.style.setProperty("translate", `${column * shown.size}px ${row * shown.size}px`);
    const weight = shown.map.weight(shown.layer, shown.head, row, column);
    readout.textContent = t("map_says", { row: shown.map.rows[row], column: shown.map.columns[column], weight: percent(weight) });
  }

  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / shown.size), Math.floor((event.clientX - box.left) / shown.size)];
  };
  canvas.addEventListener("pointermove", (event) => shown && select(...cellAt(event)));
  canvas.addEventListener("pointerleave", () => {
    cell.hidden = true;
    if (shown) readout.textContent = t("map_hint");
  });
  canvas.addEventListener("click", (event) => {
    if (!shown) return;
    select(...cellAt(event));
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!moves[event.key]) return;
    event.preventDefault();
    select(row + moves[event.key][0], column + moves[event.key][1]);
  });
  return { root, show };
}
