// Switch heads and feed-forwards off, and show the model's output without them.
import { isAbort } from "../../core/api.js";
import { debounce, el } from "../../core/dom.js";
import { fadeEdges } from "../../core/overflow.js";
import { describeChange, moveFocus, sides, toggleButton } from "./change.js";
import { HeadEffects } from "./head_effects.js";

export class Ablation {
  constructor(t, api) {
    Object.assign(this, { t, api });
    this.off = new Map(); // JSON key of a part → the part
    this.current = null; // { look, depths, request }
    this.result = null; // the server's response, or null while nothing is off
    this.abort = null;
    this.pending = false; // whether a response is still missing
    this.later = debounce(() => this.run(), 150);
    this.effects = new HeadEffects(t, api, () => this.markEffects());
    this.switches = []; // { button, part, name }
    this.tables = el("div", { class: "off-boards" });
    this.answer = el("div", { class: "off-answer", "aria-live": "polite" });
    this.error = el("p", { class: "error", role: "alert" });
    const clear = el("button", { type: "button", class: "quiet", t: "look_off_none", onclick: () => this.clear() });
    const heading = el("div", { class: "off-head" }, el("h2", { t: "look_off" }), clear);
    const left = el("section", { class: "card" }, heading, el("p", { class: "hint", t: "look_off_say" }), this.effects.root, this.tables);
    const right = el("section", { class: "card" }, el("h2", { t: "look_off_answer" }), this.answer, this.error);
    this.root = el("div", { class: "off" }, left, right);
  }

  /** `samePass`: the fields of a request about the forward pass of `look`. */
  show(look, depths, request, samePass) {
    this.current = { look, depths, request };
    this.off.clear();
    this.effects.show(depths, samePass);
    this.error.textContent = "";
    this.answer.removeAttribute("aria-busy");
    this.drawTables();
    this.drawUnchanged();
  }

  /** Draw again in the current language; switched-off parts stay off. */
  redraw() {
    if (!this.current) return;
    this.effects.draw();
    this.drawTables();
    if (this.result) this.drawResult();
    else this.drawUnchanged();
  }

  /** Repeat a request that was aborted. */
  resume() {
    if (this.pending) this.run();
  }

  stop() {
    this.later.stop();
    this.effects.stop();
    this.abort?.abort();
  }

  // ---- the switches ----
  drawTables() {
    const { encoder, decoder, heads } = this.current.depths;
    const tables = [];
    this.switches = [];
    if (encoder) tables.push(this.table("encoder", encoder, heads, false));
    if (decoder) tables.push(this.table("decoder", decoder, heads, false));
    if (encoder && decoder) tables.push(this.table("decoder", decoder, heads, true));
    this.tables.replaceChildren(...tables);
    this.markEffects();
  }

  /** Shade each switch by its effect; the largest effects have their rank. */
  markEffects() {
    for (const { button, part, name } of this.switches) {
      const effect = this.effects.of(part);
      button.style.setProperty("--share", String(effect?.share ?? 0));
      button.textContent = effect?.rank ?? "";
      button.title = effect ? `${name}: ${effect.text}` : name;
      button.setAttribute("aria-label", button.title);
    }
  }

  table(part, layers, heads, cross) {
    const numbers = Array.from({ length: heads }, (_, head) => el("th", { scope: "col", class: "numbers" }, String(head)));
    const last = cross ? null : el("th", { scope: "col" }, "FFN");
    const rows = Array.from({ length: layers }, (_, layer) => {
      const option = (head) => ({ part, layer, head, ...(cross && { cross }) });
      const buttons = numbers.map((_, head) => this.toggle(option(head), this.t("look_head_name", { layer, head })));
      if (!cross) buttons.push(this.toggle({ part, layer, feedforward: true }, this.t("look_feed_name", { layer })));
      const name = el("th", { scope: "row", class: "numbers" }, String(layer));
      return el("tr", {}, name, ...buttons.map((button) => el("td", {}, button)));
    });
    const table = el(
      "table",
      { class: "off-table", onkeydown: (event) => moveFocus(event, table) },
      el("caption", { t: cross ? "map_kind_cross" : `map_kind_${part}` }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", t: "look_layer" }), ...numbers, last)),
      el("tbody", {}, ...rows),
    );
    return fadeEdges(el("div", { class: "scroll" }, table));
  }

  toggle(part, name) {
    const onChange = () => {
      this.pending = true;
      this.later();
    };
    const button = toggleButton(this.off, part, { class: "switch numbers" }, onChange);
    this.switches.push({ button, part, name });
    return button;
  }

  clear() {
    this.off.clear();
    for (const button of this.tables.querySelectorAll("[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
    this.run();
  }

  // ---- the result ----
  async run() {
    this.abort?.abort();
    this.error.textContent = "";
    this.pending = this.off.size > 0;
    if (!this.pending) {
      this.answer.removeAttribute("aria-busy");
      return this.drawUnchanged();
    }
    const { signal } = (this.abort = new AbortController());
    this.answer.setAttribute("aria-busy", "true");
    try {
      const body = { ...this.current.request, off: [...this.off.values()] };
      this.result = await this.api.post("/v1/look/ablate", body, { signal });
      this.drawResult();
    } catch (error) {
      if (isAbort(error)) return undefined;
      this.error.textContent = error.message;
    }
    this.pending = false;
    this.answer.removeAttribute("aria-busy");
    return undefined;
  }

  drawUnchanged() {
    this.result = null;
    const text = el("p", { class: "output" }, this.current.look.output || "—");
    this.answer.replaceChildren(text, el("p", { class: "hint", t: "look_off_wait" }));
  }

  drawResult() {
    const { before, after } = this.result;
    const pair = sides([
      { title: "look_before", ...before },
      { title: "look_after", ...after },
    ]);
    this.answer.replaceChildren(pair, ...describeChange(this.t, this.result, this.current.look));
  }
}
