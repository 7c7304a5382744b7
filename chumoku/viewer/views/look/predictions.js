// Token by token: the best candidates of each prediction, and the tokens that it attended to most.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { toNumber } from "../../core/format.js";

/** → { root, show(look) }; openMap(key, layer, head, [row, column]) is called when a prediction is pressed. */
export function makePredictions(t, openMap) {
  const cards = el("div", { class: "predictions" });
  const root = el("section", { class: "card" }, el("h2", { t: "look_words" }), el("p", { class: "hint", t: "look_words_say" }), cards);

  function show(look) {
    const map = look.maps.find((one) => one.key === "cross") ?? look.maps[0];
    root.hidden = !look.words.length;
    cards.replaceChildren(...look.words.map((word) => card(word, look, map)));
  }

  function card(word, { tokens }, { key, columns }) {
    const title = word.name ?? `${tokens[word.place][1]} → ?`;
    const beyond = word.rank > word.candidates.length && { rank: word.rank, chance: percent(toNumber(word.probability)) };
    const rows = word.candidates.map(([name, value]) => ({ name, share: toNumber(value), label: percent(toNumber(value)), strong: name === word.name }));
    const attended = word.looked.map(([column, weight]) => `${columns[column]} ${percent(toNumber(weight))}`).join(", ");
    const onclick = () => openMap(key, null, null, [word.place, word.looked[0][0]]);
    return el(
      "button",
      { type: "button", class: "prediction", onclick },
      el("span", {}, el("strong", {}, title), beyond ? ` ${t("look_beyond", beyond)}` : null),
      bars(rows),
      el("span", { class: "hint" }, t("look_attends", { list: attended })),
    );
  }

  return { root, show };
}
