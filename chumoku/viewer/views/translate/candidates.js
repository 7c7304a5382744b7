// The candidates at each step: for every generated token, the five most probable ones.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { tokenText } from "../../core/text.js";

const MAX_CARDS = 96; // more would be slow on a phone

export function makeCandidates(t, onPoint) {
  const cards = el("div", { class: "cards" });
  const cut = el("p", { class: "cut" });
  const heads = [el("h2", { t: "tr_steps" }), el("p", { class: "hint", t: "tr_steps_hint" })];
  const root = el("section", { class: "card steps" }, ...heads, cards, cut);

  function show(hypothesis) {
    const steps = hypothesis.candidates ?? [];
    root.hidden = steps.length === 0;
    cut.textContent = steps.length > MAX_CARDS ? t("tr_cut_steps", { most: MAX_CARDS }) : "";
    const some = steps.slice(0, MAX_CARDS);
    cards.replaceChildren(...some.map((candidates, place) => card(candidates, hypothesis.tokens[place], place)));
  }

  function card(candidates, token, place) {
    const name = token ? tokenText(token.text).bare || "␣" : t("tr_end");
    const rows = candidates.map((one) => ({
      name: tokenText(one.text).bare || "␣",
      share: Number(one.probability),
      strong: token ? one.id === token.id : false,
      label: percent(one.probability),
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
