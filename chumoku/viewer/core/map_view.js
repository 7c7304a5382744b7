// One head's map, large: names at its sides, a cell under the pointer or the arrow keys, its weight in words.
import { el, percent } from "./dom.js";
import { paint } from "./heatmap.js";
import { strings } from "./i18n.js";
import { strings as own } from "./map_strings.js";

strings(own);

const NAMED = 48; // so many tokens have room for their names
const SIDE = 540;
const UPRIGHT = /[\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]/; // letters that stand upright in a column

/** → { root, show(map, layer, head), redraw() }; onPick(row, column) when a cell is chosen. */
export function makeMapView(t, onPick = () => {}) {
  const canvas = el("canvas", { tabindex: 0, role: "img", class: "map-canvas" });
  const cell = el("div", { class: "map-cell", hidden: true });
  const frame = el("div", { class: "map-frame" }, canvas, cell);
  const left = el("div", { class: "map-rows", "aria-hidden": "true" });
  const top = el("div", { class: "map-columns", "aria-hidden": "true" });
  const readout = el("p", { class: "map-readout hint numbers", "aria-live": "polite" });
  const root = el("div", { class: "map-view" }, el("div", { class: "scroll" }, el("div", { class: "map-grid" }, el("span"), top, left, frame)), readout);
  let now = null; // { map, layer, head, size }
  let [row, column] = [0, 0];

  function show(map, layer, head) {
    const [rows, columns] = [map.rows.length, map.columns.length];
    const named = Math.max(rows, columns) <= NAMED;
    const size = named ? Math.max(15, Math.min(30, Math.floor(SIDE / Math.max(rows, columns)))) : Math.max(1, SIDE / Math.max(rows, columns));
    now = { map, layer, head, size };
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

  function point(nextRow, nextColumn) {
    if (!now) return;
    row = Math.min(now.map.rows.length - 1, Math.max(0, nextRow));
    column = Math.min(now.map.columns.length - 1, Math.max(0, nextColumn));
    cell.hidden = false;
    cell.style.setProperty("translate", `${column * now.size}px ${row * now.size}px`);
    const weight = now.map.weight(now.layer, now.head, row, column);
    readout.textContent = t("map_says", { row: now.map.rows[row], column: now.map.columns[column], weight: percent(weight) });
  }

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / now.size), Math.floor((event.clientX - box.left) / now.size)];
  };
  canvas.addEventListener("pointermove", (event) => now && point(...under(event)));
  canvas.addEventListener("pointerleave", () => {
    cell.hidden = true;
    if (now) readout.textContent = t("map_hint");
  });
  canvas.addEventListener("click", (event) => {
    if (!now) return;
    point(...under(event));
    onPick(row, column);
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Enter") onPick(row, column);
    if (!moves[event.key]) return;
    event.preventDefault();
    point(row + moves[event.key][0], column + moves[event.key][1]);
  });
  return { root, show, redraw: () => now && show(now.map, now.layer, now.head) };
}
