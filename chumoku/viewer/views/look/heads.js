// All heads at once: one small map per head, drawn when it scrolls into view, and one of them enlarged.
import { el } from "../../core/dom.js";
import { unpackMap, paint } from "../../core/heatmap.js";
import { makeMapView } from "../../core/map_view.js";

const layerNumber = (map, layer) => layer + (map.first_layer ?? 0);

export class HeadGrid {
  /** onChoose(key, layer, head): a head was opened; onLayer(layer or null): a layer was chosen; onStep(): step through. */
  constructor(t, { onChoose, onLayer, onStep }) {
    Object.assign(this, { t, onChoose, maps: [], selected: { layer: 0, head: 0 }, shownLayer: "" });
    this.undrawn = new Map(); // canvas → a function that returns the table to paint on it
    this.observer = new IntersectionObserver((entries) => this.paintVisible(entries), { rootMargin: "300px" });
    this.which = el("select", { "t-label": "map_which", onchange: () => this.draw() });
    this.layers = el("select", { "t-label": "look_which_layer" });
    this.layers.addEventListener("change", () => onLayer(this.layers.value === "" ? null : Number(this.layers.value)));
    this.grid = el("div", { class: "heads-grid", role: "list", onkeydown: (event) => this.moveFocus(event) });
    this.mapView = makeMapView(t);
    this.title = el("h2", { class: "numbers" });
    this.message = el("span", { class: "hint numbers" });
    const follow = el("button", { type: "button", t: "look_step_here", onclick: onStep });
    this.side = el("section", { class: "card heads-large" }, this.title, this.mapView.root, follow);
    const field = (key, input) => el("label", {}, el("span", { t: key }), input);
    const controls = el("div", { class: "controls" }, field("map_which", this.which), field("look_which_layer", this.layers), this.message);
    const list = el("section", { class: "card" }, controls, el("p", { class: "hint", t: "look_heads_say" }), this.grid);
    this.root = el("div", { class: "heads" }, list, this.side);
  }

  /** `depth`: how many layers can be chosen; `layer`: the only layer in `look`, or null for all. */
  show(look, { depth, layer }) {
    this.maps = look.maps.map(unpackMap);
    const key = this.map() ? this.which.value : this.maps[0]?.key;
    this.which.replaceChildren(...this.maps.map((one) => el("option", { value: one.key, t: `map_kind_${one.key}` })));
    this.which.value = key ?? "";
    const numbers = Array.from({ length: depth }, (_, at) => el("option", { value: String(at) }, String(at)));
    this.layers.replaceChildren(el("option", { value: "", t: "look_all_layers" }), ...numbers);
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
    this.enlarge(map, Math.min(this.selected.layer, map.layers - 1), Math.min(this.selected.head, map.heads - 1));
  }

  smallMap(map, layer, head) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    canvas.style.setProperty("aspect-ratio", `${map.columns.length} / ${map.rows.length}`);
    this.undrawn.set(canvas, () => map.table(layer, head));
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
    for (const { target, isIntersecting } of entries) {
      const table = isIntersecting && this.undrawn.get(target);
      if (!table) continue;
      paint(target, table());
      this.undrawn.delete(target);
      this.observer.unobserve(target);
    }
  }

  enlarge(map, layer, head) {
    this.selected = { layer, head };
    this.title.textContent = this.t("look_head_name", { layer: layerNumber(map, layer), head });
    this.mapView.show(map, layer, head);
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
