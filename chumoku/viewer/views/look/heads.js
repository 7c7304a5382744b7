// All heads at once: one small map per head, drawn when it scrolls into view, and one of them enlarged.
import { el } from "../../core/dom.js";
import { unpackMap, paint } from "../../core/heatmap.js";
import { makeMapView } from "../../core/map_view.js";

const layerNumber = (map, layer) => layer + (map.first_layer ?? 0);
const field = (key, input) => el("label", {}, el("span", { t: key }), input);

export class HeadGrid {
  /** onChoose(key, layer, head): a head was opened; onLayer(layer or null): a layer was chosen; onStep(): step through.
   * Without onLayer and onStep, their controls are left out. `mapOptions` are those of `makeMapView`. */
  constructor(t, { onChoose = () => {}, onLayer = null, onStep = null, mapOptions }) {
    Object.assign(this, { t, onChoose, maps: [], selected: { layer: 0, head: 0 }, shownLayer: "" });
    this.undrawn = new Map(); // canvas → a function that returns the table to paint on it
    this.observer = new IntersectionObserver((entries) => this.paintVisible(entries), { rootMargin: "300px" });
    this.which = el("select", { "t-label": "map_which", onchange: () => this.draw() });
    this.layers = el("select", { "t-label": "look_which_layer", onchange: () => onLayer(numberOrNull(this.layers)) });
    this.emphasis = el("input", { type: "checkbox", checked: true, onchange: () => this.draw() });
    this.grid = el("div", { class: "heads-grid", role: "list", onkeydown: (event) => this.moveFocus(event) });
    this.mapView = makeMapView(t, mapOptions);
    this.title = el("h2", { class: "numbers" });
    this.message = el("span", { class: "hint numbers" });
    const pick = () => this.enlarge(this.map(), numberOrNull(this.layerOf), numberOrNull(this.headOf));
    [this.layerOf, this.headOf] = ["look_layer", "look_head"].map((key) => el("select", { "t-label": key, onchange: pick }));
    this.pickers = el("div", { class: "controls" }, field("look_layer", this.layerOf), field("look_head", this.headOf));
    this.follow = onStep && el("button", { type: "button", t: "look_step_here", onclick: onStep });
    this.side = el("section", { class: "card heads-large" }, this.title, this.pickers, this.mapView.root, this.follow);
    const fields = [field("map_which", this.which), onLayer && field("look_which_layer", this.layers), field("look_root", this.emphasis)];
    const say = el("p", { class: "hint", t: onLayer ? "look_heads_say" : "look_heads_all" });
    const list = el("section", { class: "card" }, el("h2", { t: "look_attention" }), el("div", { class: "controls" }, ...fields, this.message), say, this.grid);
    this.root = el("div", { class: "heads" }, list, this.side);
  }

  /** `depth`: how many layers can be chosen; `layer`: the only layer in `look`, or null for all. */
  show(look, { depth = 0, layer = null } = {}) {
    this.maps = look.maps.map(unpackMap);
    const key = this.map() ? this.which.value : this.maps[0]?.key;
    this.which.replaceChildren(...this.maps.map((one) => el("option", { value: one.key, t: `map_kind_${one.key}` })));
    this.which.value = key ?? "";
    this.layers.replaceChildren(el("option", { value: "", t: "look_all_layers" }), ...numberOptions(depth, 0));
    this.shownLayer = layer === null ? "" : String(layer);
    this.resetLayer();
    this.draw();
  }

  /** Select the layer that is drawn, after a request for another one was aborted. */
  resetLayer() {
    this.layers.value = this.shownLayer;
  }

  say(sentence) {
    this.message.textContent = sentence;
  }

  unmount() {
    this.observer.disconnect();
  }

  map() {
    return this.maps.find((one) => one.key === this.which.value);
  }

  /** Enlarge one map, and go there. A null layer or head: the mean over all; `cell`: [row, column], or null for the largest weight. */
  open(key, layer, head, cell = null) {
    this.which.value = key;
    this.selected = { layer, head };
    this.draw();
    if (cell) this.mapView.pin(...cell);
    else this.mapView.pinLargest();
  }

  draw() {
    const map = this.map();
    this.observer.disconnect();
    this.undrawn.clear();
    this.grid.replaceChildren();
    this.side.hidden = !map;
    if (!map) return;
    this.grid.style.setProperty("--heads", String(map.heads));
    for (let layer = 0; layer < map.layers; layer++)
      for (let head = 0; head < map.heads; head++) this.grid.append(this.smallMap(map, layer, head));
    const mean = (count) => (count > 1 ? [el("option", { value: "", t: "look_mean" })] : []);
    this.layerOf.replaceChildren(...mean(map.layers), ...numberOptions(map.layers, map.first_layer ?? 0));
    this.headOf.replaceChildren(...mean(map.heads), ...numberOptions(map.heads, 0));
    this.pickers.hidden = map.layers * map.heads === 1;
    this.enlarge(map, clamp(this.selected.layer, map.layers), clamp(this.selected.head, map.heads));
  }

  smallMap(map, layer, head) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    canvas.style.setProperty("aspect-ratio", `${map.columns.length} / ${map.rows.length}`);
    this.undrawn.set(canvas, () => ({ ...map.table(layer, head), linear: !this.emphasis.checked }));
    this.observer.observe(canvas);
    const onclick = () => {
      this.enlarge(map, layer, head);
      this.onChoose(map.key, layerNumber(map, layer), head);
    };
    const label = this.t("look_head_name", { layer: layerNumber(map, layer), head });
    const attributes = { type: "button", class: "head", "aria-label": label, "data-at": `${layer},${head}`, onclick };
    const name = el("span", { class: "numbers" }, `${layerNumber(map, layer)}·${head}`);
    return el("div", { role: "listitem" }, el("button", attributes, canvas, name));
  }

  paintVisible(entries) {
    for (const { target, isIntersecting } of entries) if (isIntersecting) this.paintOnce(target);
  }

  paintOnce(canvas) {
    const table = this.undrawn.get(canvas);
    if (!table) return;
    paint(canvas, table());
    this.undrawn.delete(canvas);
    this.observer.unobserve(canvas);
  }

  /** Paint all maps, also those that are not in view, for printing. */
  paintAll() {
    for (const canvas of [...this.undrawn.keys()]) this.paintOnce(canvas);
  }

  enlarge(map, layer, head) {
    this.selected = { layer, head };
    const mean = this.t("map_mean");
    this.title.textContent = this.t("look_head_name", { layer: layer === null ? mean : layerNumber(map, layer), head: head ?? mean });
    [this.layerOf.value, this.headOf.value] = [layer ?? "", head ?? ""].map(String);
    if (this.follow) this.follow.hidden = layer === null || head === null;
    this.mapView.show(map, layer, head, { linear: !this.emphasis.checked });
    for (const button of this.grid.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.at === `${layer},${head}`));
  }

  moveFocus(event) {
    const heads = this.map()?.heads;
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads }[event.key];
    const buttons = [...this.grid.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + move];
    if (!move || !next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }
}

const numberOrNull = (select) => (select.value === "" ? null : Number(select.value));
const clamp = (number, count) => (number === null && count > 1 ? null : Math.min(number ?? 0, count - 1));

function numberOptions(count, first) {
  return Array.from({ length: count }, (_, at) => el("option", { value: String(at) }, String(at + first)));
}
