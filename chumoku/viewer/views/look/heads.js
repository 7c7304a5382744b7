// All heads at once: a small map each, drawn when it comes into sight, and one of them large.
import { el } from "../../core/dom.js";
import { opened, paint } from "../../core/heatmap.js";
import { makeMapView } from "../../core/map_view.js";

/** → { root, show(look), redraw() }; onChoose(key, layer, head) when a head is opened. */
export function makeHeads(t, { onChoose, onLayer, onStep }) {
  const which = el("select", { "t-label": "map_which" });
  const layers = el("select", { "t-label": "look_which_layer" });
  const grid = el("div", { class: "heads-grid", role: "list" });
  const large = makeMapView(t);
  const title = el("h2", { class: "numbers" });
  const time = el("span", { class: "hint numbers" });
  const controls = el(
    "div",
    { class: "controls" },
    el("label", {}, el("span", { t: "map_which" }), which),
    el("label", {}, el("span", { t: "look_which_layer" }), layers),
    time,
  );
  const follow = el("button", { type: "button", t: "look_step_here", onclick: onStep });
  const side = el("section", { class: "card heads-large" }, title, large.root, follow);
  const root = el("div", { class: "heads" }, el("section", { class: "card" }, controls, el("p", { class: "hint", t: "look_heads_say" }), grid), side);
  const waiting = new Map(); // canvases that have not been drawn, with what is to be drawn on them
  const sight = new IntersectionObserver(seen, { rootMargin: "300px" });
  let maps = [];
  let now = { layer: 0, head: 0 };
  let shown = ""; // the layer drawn, or all

  /** What is drawn is also what the choice of a layer says, should another never have come. */
  function told() {
    layers.value = shown;
  }

  function seen(entries) {
    const began = performance.now();
    for (const entry of entries) {
      const table = entry.isIntersecting && waiting.get(entry.target);
      if (!table) continue;
      paint(entry.target, table());
      waiting.delete(entry.target);
      sight.unobserve(entry.target);
    }
    root.dataset.drawn = String(performance.now() - began); // what a test of speed reads
  }

  function show(look, { depth, layer }) {
    maps = look.maps.map(opened);
    const key = maps.some((one) => one.key === which.value) ? which.value : maps[0]?.key;
    which.replaceChildren(...maps.map((one) => el("option", { value: one.key, t: `map_kind_${one.key}` })));
    which.value = key ?? "";
    const numbers = Array.from({ length: depth }, (_, at) => el("option", { value: String(at) }, String(at)));
    layers.replaceChildren(el("option", { value: "", t: "look_all_layers" }), ...numbers);
    shown = layer === null ? "" : String(layer);
    told();
    draw();
  }

  function draw() {
    const map = maps.find((one) => one.key === which.value);
    sight.disconnect();
    waiting.clear();
    grid.replaceChildren();
    side.hidden = !map;
    if (!map) return;
    grid.style.setProperty("--heads", String(map.heads));
    for (let layer = 0; layer < map.layers; layer++)
      for (let head = 0; head < map.heads; head++) grid.append(small(map, layer, head));
    now = { layer: Math.min(now.layer, map.layers - 1), head: Math.min(now.head, map.heads - 1) };
    enlarge(map, now.layer, now.head);
  }

  function small(map, layer, head) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    canvas.style.setProperty("aspect-ratio", `${map.columns.length} / ${map.rows.length}`);
    waiting.set(canvas, () => map.table(layer, head));
    sight.observe(canvas);
    const name = `${layer + (map.first_layer ?? 0)}·${head}`;
    const open = () => {
      enlarge(map, layer, head);
      onChoose(map.key, layer + (map.first_layer ?? 0), head);
    };
    const label = t("look_head_name", { layer: layer + (map.first_layer ?? 0), head });
    const looks = { type: "button", class: "head", "aria-label": label, "data-at": `${layer},${head}`, onclick: open };
    return el("div", { role: "listitem" }, el("button", looks, canvas, el("span", { class: "numbers" }, name)));
  }

  function enlarge(map, layer, head) {
    now = { layer, head };
    title.textContent = t("look_head_name", { layer: layer + (map.first_layer ?? 0), head });
    large.show(map, layer, head);
    for (const button of grid.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.at === `${layer},${head}`));
  }

  grid.addEventListener("keydown", (event) => {
    const map = maps.find((one) => one.key === which.value);
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map?.heads, ArrowDown: map?.heads }[event.key];
    const buttons = [...grid.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + move];
    if (!move || !next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  which.addEventListener("change", draw);
  layers.addEventListener("change", () => onLayer(layers.value === "" ? null : Number(layers.value)));
  return {
    root,
    show,
    redraw: draw,
    told,
    unmount: () => sight.disconnect(),
    say: (sentence) => (time.textContent = sentence),
  };
}
