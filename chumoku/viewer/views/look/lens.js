// The logit lens: the prediction of each layer, if it were the last. A row per layer, the last on top; a column per token.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { toNumber } from "../../core/format.js";
import { fadeEdges } from "../../core/overflow.js";

export function makeLens(t) {
  const box = fadeEdges(el("div", { class: "scroll lens-box names-stay" }));
  const best = el("div", { class: "lens-best" });
  const pair = el("div", { class: "lens-pair" }, box, best);
  const root = el("section", { class: "card lens" }, el("h2", { t: "look_lens" }), el("p", { class: "hint", t: "look_lens_say" }), pair);
  let shown = null;

  function show(look) {
    shown = look;
    best.replaceChildren();
    if (!look.lens) return box.replaceChildren(el("p", { class: "empty", t: "look_lens_none" }));
    const places = look.tokens.map(([, name], at) => el("th", { scope: "col", class: at < look.first ? "given" : null }, name));
    const head = el("tr", {}, el("th", { scope: "col", t: "look_layer" }), ...places);
    const body = el("tbody");
    // The first row is the embedding, so the row after block 0, as addresses count them, is row 1.
    look.lens.forEach((row, layer) => {
      const name = el("th", { scope: "row", class: "numbers" }, layer ? String(layer - 1) : "x₀");
      body.prepend(el("tr", {}, name, ...row.map((place, at) => cell(place, layer, at))));
    });
    const table = el("table", { class: "lens-table" }, el("thead", {}, head), body);
    // One listener for all cells: there can be thousands.
    for (const event of ["pointerover", "focusin", "click"]) table.addEventListener(event, showBest);
    table.addEventListener("keydown", moveFocus);
    box.replaceChildren(table);
    mark(table.querySelector("td[tabindex='0']"));
    return undefined;
  }

  function cell(candidates, layer, place) {
    const [name, probability] = candidates[0];
    const share = toNumber(probability);
    const isNaN = Number.isNaN(share);
    const first = layer === shown.lens.length - 1 && place === (shown.words[0]?.place ?? 0);
    const attributes = { tabindex: first ? 0 : -1, "data-layer": layer, "data-place": place, class: isNaN ? "nan" : null };
    const td = el("td", attributes, isNaN ? "NaN" : name);
    td.style.setProperty("--share", String(share || 0));
    return td;
  }

  function showBest(event) {
    const at = event.target.closest?.("td");
    if (at) mark(at);
  }

  /** Show the best tokens of a cell. */
  function mark(at) {
    for (const one of box.querySelectorAll("td.at")) one.classList.remove("at");
    at.classList.add("at");
    const [layer, place] = [Number(at.dataset.layer), Number(at.dataset.place)];
    const rows = shown.lens[layer][place].map(([name, value]) => ({ name, share: toNumber(value), label: percent(toNumber(value)), strong: true }));
    const after = layer ? t("look_patch_layer", { layer: layer - 1 }) : t("look_patch_embedding");
    best.replaceChildren(el("h3", { class: "numbers" }, t("look_lens_at", { after, token: shown.tokens[place][1] })), bars(rows));
  }

  function moveFocus(event) {
    const moves = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const at = event.target.closest("td");
    if (!at || !moves[event.key]) return;
    const [layer, place] = [Number(at.dataset.layer) + moves[event.key][0], Number(at.dataset.place) + moves[event.key][1]];
    event.preventDefault();
    box.querySelector(`td[data-layer="${layer}"][data-place="${place}"]`)?.focus();
  }

  return { root, show, redraw: () => shown && show(shown), wait: () => box.replaceChildren(el("p", { class: "empty", t: "look_wait" })) };
}
