// The tokens as buttons: one line for the source, if there is one, and one for the model's own tokens.
import { el } from "../../core/dom.js";
import { fadeEdges } from "../../core/overflow.js";

/** A sentence that explains ▁, shown if a token has it: → { root, show(look) }. */
export function makeSpaceHint() {
  const root = el("p", { class: "hint space-hint", t: "look_space", hidden: true });
  const show = (look) => (root.hidden = ![...(look?.source ?? []), ...(look?.tokens ?? [])].some(([, name]) => name.includes("▁")));
  return { root, show };
}

export class TokenLines {
  /** onChoose({ part, place }) is called when a token is pressed, or reached with the arrow keys. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.selected = null; // { part, place }
    this.root = el("div", { class: "token-lines" });
    this.root.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !this.selected) return;
      event.preventDefault();
      const { part, place } = this.selected;
      if (this.root.querySelectorAll(`[data-part=${part}]`)[place + move]) onChoose({ part, place: place + move });
    });
  }

  show({ source, tokens, first, kind }, selected) {
    this.selected = selected;
    const focused = this.root.contains(document.activeElement);
    const lines = source.length
      ? [this.line("encoder", "look_source", source, Infinity), this.line("decoder", "look_target", tokens, 1)]
      : [this.line(kind, kind === "encoder" ? "look_encoder_text" : "look_target", tokens, first)];
    this.root.replaceChildren(...lines);
    if (focused) this.root.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
  }

  line(part, title, tokens, promptLength) {
    const chips = tokens.map(([id, name], place) => {
      const here = part === this.selected.part && place === this.selected.place;
      const attributes = { class: `chip${place >= promptLength ? " wrote" : ""}`, "aria-pressed": String(here), tabindex: here ? 0 : -1 };
      const onclick = () => this.onChoose({ part, place });
      return el("button", { type: "button", ...attributes, "data-part": part, onclick }, name, el("small", {}, String(id)));
    });
    return el("div", { class: "tokens" }, el("span", { class: "hint", t: title }), fadeEdges(el("div", { class: "chips", role: "group" }, ...chips)));
  }
}
