// The tokens as buttons: one line for the source, if there is one, and one for the model's own tokens.
import { el } from "../../core/dom.js";

/** `selected` = { part, place }; `choose({ part, place })` is called when another token is pressed. */
export function tokenLines({ source, tokens, first, kind }, selected, choose) {
  const line = (part, list, promptLength) => {
    const chips = list.map(([id, name], place) => {
      const here = part === selected.part && place === selected.place;
      const attributes = { class: `chip${place >= promptLength ? " wrote" : ""}`, "aria-pressed": String(here), tabindex: here ? 0 : -1 };
      const onclick = () => choose({ part, place });
      return el("button", { type: "button", ...attributes, "data-part": part, onclick }, name, el("small", {}, String(id)));
    });
    const key = part === "decoder" ? "look_target" : source.length ? "look_source" : "look_encoder_text";
    return el("div", { class: "tokens" }, el("span", { class: "hint", t: key }), el("div", { class: "chips", role: "group" }, ...chips));
  };
  if (source.length) return [line("encoder", source, Infinity), line("decoder", tokens, 1)];
  return [line(kind === "encoder" ? kind : "decoder", tokens, first)];
}
