// The tokens of a look as chips: a line for the source where there is one, and a line for the model's own.
import { el } from "../../core/dom.js";

/** `at` = { part, place } is the token looked at; `choose({ part, place })` when another is pressed. */
export function tokenLines({ source, tokens, first, kind }, at, choose) {
  const line = (part, list, wrote) => {
    const chips = list.map(([id, name], place) => {
      const here = part === at.part && place === at.place;
      const looks = { class: `chip${place >= wrote ? " wrote" : ""}`, "aria-pressed": String(here), tabindex: here ? 0 : -1 };
      const onclick = () => choose({ part, place });
      return el("button", { type: "button", ...looks, "data-part": part, onclick }, name, el("small", {}, String(id)));
    });
    const what = part === "decoder" ? "look_target" : source.length ? "look_source" : "look_encoder_text";
    return el("div", { class: "tokens" }, el("span", { class: "hint", t: what }), el("div", { class: "chips", role: "group" }, ...chips));
  };
  if (source.length) return [line("encoder", source, Infinity), line("decoder", tokens, 1)];
  return [line(kind === "encoder" ? kind : "decoder", tokens, first)];
}
