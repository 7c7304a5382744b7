// The logit lens: what each layer would say, were it the last. A row a layer, the last on top; a column a place.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { numeric } from "../../core/figures.js";

export function makeLens(t) {
  const box = el("div", { class: "scroll lens-box" });
  const best = el("div", { class: "lens-best" });
  const pair = el("div", { class: "lens-pair" }, box, best);
  const root = el("section", { class: "card lens" }, el("h2", { t: "look_lens" }), el("p", { class: "hint", t: "look_lens_say" }), pair);
  let now = null;

  function show(look) {
    now = look;
    best.replaceChildren();
    if (!look.lens) return box.replaceChildren(el("p", { class: "empty", t: "look_lens_none" }));
    const places = look.tokens.map(([, name], at) => el("th", { scope: "col", class: at < look.first ? "given" : null }, name));
    const head = el("tr", {}, el("th", { scope: "col", t: "look_layer" }), ...places);
    const body = el("tbody");
    look.lens.forEach((row, layer) => {
      const name = el("th", { scope: "row", class: "numbers" }, layer ? String(layer) : "x₀");
      body.prepend(el("tr", {}, name, ...row.map((place, at) => cell(place, layer, at))));
    });
    const table = el("table", { class: "lens-table" }, el("thead", {}, head), body);
    // One listener for thousands of cells.
    for (const event of ["pointerover", "focusin", "click"]) table.addEventListener(event, tell);
    table.addEventListener("keydown", walk);
    box.replaceChildren(table);
    return undefined;
  }

  function cell(candidates, layer, place) {
    const [name, chance] = candidates[0];
    const share = numeric(chance);
    const none = Number.isNaN(share);
    const first = layer === 0 && place === 0;
    const made = el("td", { tabindex: first ? 0 : -1, "data-layer": layer, "data-place": place, class: none ? "nan" : null }, none ? "NaN" : name);
    made.style.setProperty("--share", String(share || 0));
    return made;
  }

  function tell(event) {
    const at = event.target.closest?.("td");
    if (!at) return;
    const [layer, place] = [Number(at.dataset.layer), Number(at.dataset.place)];
    const rows = now.lens[layer][place].map(([name, chance]) => ({ name, share: numeric(chance), told: percent(numeric(chance)), strong: true }));
    best.replaceChildren(el("h3", { class: "numbers" }, t("look_lens_at", { layer, token: now.tokens[place][1] })), bars(rows));
  }

  function walk(event) {
    const moves = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const at = event.target.closest("td");
    if (!at || !moves[event.key]) return;
    const [layer, place] = [Number(at.dataset.layer) + moves[event.key][0], Number(at.dataset.place) + moves[event.key][1]];
    event.preventDefault();
    box.querySelector(`td[data-layer="${layer}"][data-place="${place}"]`)?.focus();
  }
  return { root, show, redraw: () => now && show(now), wait: () => box.replaceChildren(el("p", { class: "empty", t: "look_wait" })) };
}
