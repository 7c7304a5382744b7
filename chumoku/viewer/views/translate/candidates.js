// The candidates at each step: for every word written, the five the model thought likeliest there.
import { el, percent } from "../../core/dom.js";
import { bars } from "../../core/bars.js";
import { pieces } from "../../core/text.js";

const MOST = 96; // cards; more than this nobody reads, and a phone feels

export function makeSteps(t, onPoint) {
  const cards = el("div", { class: "cards" });
  const cut = el("p", { class: "cut" });
  const heads = [el("h2", { t: "tr_steps" }), el("p", { class: "hint", t: "tr_steps_hint" })];
  const root = el("section", { class: "card steps" }, ...heads, cards, cut);

  function show(said) {
    const steps = said.candidates ?? [];
    root.hidden = steps.length === 0;
    cut.textContent = steps.length > MOST ? t("tr_cut_steps", { most: MOST }) : "";
    const some = steps.slice(0, MOST);
    cards.replaceChildren(...some.map((candidates, place) => card(candidates, said.tokens[place], place)));
  }

  function card(candidates, token, place) {
    const name = token ? pieces(token.text).bare || "·" : t("tr_end");
    const rows = candidates.map((one) => ({
      name: pieces(one.text).bare || "·",
      share: Number(one.probability),
      strong: token ? one.id === token.id : false,
      told: percent(one.probability),
    }));
    return el(
      "div",
      { class: "step", onpointerenter: () => onPoint(place), onpointerleave: () => onPoint(null) },
      el("strong", {}, name),
      bars(rows),
    );
  }

  function point(place) {
    [...cards.children].forEach((one, at) => one.classList.toggle("at", at === place));
  }

  return { root, show, point };
}
