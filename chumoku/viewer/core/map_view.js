// An enlarged attention map with token names; the pointer or the arrow keys select a cell and show its weight.
import { el, percent } from "./dom.js";
import { paint, weightAt } from "./heatmap.js";
import { addStrings } from "./i18n.js";
import { strings } from "./map_strings.js";
import { fadeEdges } from "./overflow.js";

addStrings(strings);

const MAX_NAMED = 48; // larger maps have no room for token names, unless the page scrolls
const LARGEST = 3; // weights of a row that are listed
const UPRIGHT = /[\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]/; // characters that are not rotated in column names
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** → { root, show(map, layer, head), pin(row, column), pinLargest(), focus() }; a null layer or head: the mean over all.
 * `side`: the preferred width and height in px; `maxNamed`: the most tokens whose names are shown. */
export function makeMapView(t, { side = 540, maxNamed = MAX_NAMED } = {}) {
  const canvas = el("canvas", { tabindex: 0, role: "img", class: "map-canvas" });
  const cell = el("div", { class: "map-cell", hidden: true });
  const frame = el("div", { class: "map-frame" }, canvas, cell);
  const left = el("div", { class: "map-rows", "aria-hidden": "true" });
  const top = el("div", { class: "map-columns", "aria-hidden": "true" });
  const readout = el("p", { class: "map-readout hint numbers", "aria-live": "polite" });
  const scroller = fadeEdges(el("div", { class: "scroll names-stay" }, el("div", { class: "map-grid" }, el("span"), top, left, frame)));
  const root = el("div", { class: "map-view" }, scroller, readout);
  let shown = null; // { map, table, size }
  let pinned = null; // the cell that was clicked or reached with the arrow keys: [row, column]

  function show(map, layer, head, { linear = false } = {}) {
    if (shown?.map !== map) pinned = null;
    const [rows, columns] = [map.rows.length, map.columns.length];
    const longest = Math.max(rows, columns);
    const named = longest <= maxNamed;
    const size = named ? Math.max(longest > MAX_NAMED ? 11 : 15, Math.min(30, Math.floor(side / longest))) : Math.max(1, side / longest);
    shown = { map, table: map.table(layer, head), size };
    paint(canvas, { ...shown.table, linear, scale: named ? 8 : 1 });
    for (const [name, value] of [["width", columns * size], ["height", rows * size]]) canvas.style.setProperty(name, `${value}px`);
    root.style.setProperty("--cell", `${size}px`);
    left.replaceChildren(...(named ? map.rows.map((name) => el("span", { title: name }, name)) : []));
    top.replaceChildren(...(named ? map.columns.map((name) => el("span", { title: name, class: name.length < 2 || UPRIGHT.test(name) ? "upright" : null }, name)) : []));
    const mean = t("map_mean");
    canvas.setAttribute("aria-label", t("map_label", { layer: layer === null ? mean : layer + (map.first_layer ?? 0), head: head ?? mean }));
    reset();
  }

  function select(nextRow, nextColumn) {
    const { map, table, size } = shown;
    const row = Math.min(map.rows.length - 1, Math.max(0, nextRow));
    const column = Math.min(map.columns.length - 1, Math.max(0, nextColumn));
    unmark();
    for (const name of [left.children[row], top.children[column]]) name?.classList.add("at");
    cell.hidden = false;
    cell.style.setProperty("translate", `${column * size}px ${row * size}px`);
    const weights = map.columns.map((name, at) => ({ name, weight: weightAt(table, row * map.columns.length + at) }));
    const { weight } = weights[column];
    const sentence = t("map_says", { row: map.rows[row], column: map.columns[column], weight: percent(weight) });
    const rank = 1 + weights.filter((one) => one.weight > weight).length;
    const largest = weights.filter((one) => one.weight >= 0).sort((a, b) => b.weight - a.weight).slice(0, LARGEST);
    const list = largest.map((one) => `${one.name} ${percent(one.weight)}`).join(", ");
    const order = Number.isNaN(weight) ? [] : [` · ${t("map_rank", { rank, count: weights.length })}`, el("br"), t("map_largest", { list })];
    readout.replaceChildren(sentence, ...order);
    return [row, column];
  }

  function pin(row, column) {
    if (shown) pinned = select(row, column);
  }

  function pinLargest() {
    const { table, map } = shown;
    let best = 0;
    for (let at = 0; at < map.rows.length * map.columns.length; at++) if (weightAt(table, at) > weightAt(table, best)) best = at;
    pin(Math.floor(best / map.columns.length), best % map.columns.length);
  }

  function unmark() {
    cell.hidden = true;
    for (const name of root.querySelectorAll(".at")) name.classList.remove("at");
  }

  /** Select the pinned cell again, or nothing. */
  function reset() {
    if (pinned) return pin(...pinned);
    unmark();
    readout.textContent = t("map_hint");
    return undefined;
  }

  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / shown.size), Math.floor((event.clientX - box.left) / shown.size)];
  };
  canvas.addEventListener("pointermove", (event) => shown && select(...cellAt(event)));
  canvas.addEventListener("pointerleave", () => shown && reset());
  canvas.addEventListener("click", (event) => shown && pin(...cellAt(event)));
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = pinned ?? [0, 0];
    pin(row + move[0], column + move[1]);
  });
  return { root, show, pin, pinLargest, focus: () => canvas.focus({ preventScroll: true }) };
}
