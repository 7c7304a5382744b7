// Switch heads and feed-forwards off, and show the model's output without them.
import { isAbort } from "../../core/api.js";
import { bars } from "../../core/bars.js";
import { debounce, el, percent } from "../../core/dom.js";
import { formatNumber, toNumber } from "../../core/format.js";
import { fadeEdges } from "../../core/overflow.js";
import { HeadEffects } from "./head_effects.js";

const MAX_OFF = 64;

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
    const key = JSON.stringify(part);
    const onclick = () => {
      if (this.off.has(key)) this.off.delete(key);
      else if (this.off.size < MAX_OFF) this.off.set(key, part);
      button.setAttribute("aria-pressed", String(this.off.has(key)));
      this.pending = true;
      this.later();
    };
    const pressed = String(this.off.has(key));
    const button = el("button", { type: "button", class: "switch numbers", "aria-pressed": pressed, onclick });
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
    const { measure, change, before, after, places } = this.result;
    const column = (key, { output, candidates }) =>
      el(
        "div",
        { class: "off-side" },
        el("h3", { t: key }),
        el("p", { class: "output" }, output || "—"),
        candidates.length ? bars(candidates.map(candidateBar)) : null,
      );
    const bits = measure === "bits";
    const sentence = this.t(bits ? "look_off_bits" : "look_off_cosine", { change: formatNumber(change) });
    const pair = el("div", { class: "off-pair" }, column("look_before", before), column("look_after", after));
    const words = bits && this.current.look.kind !== "encoder" ? [this.shadedTokens(places)] : [];
    this.answer.replaceChildren(pair, el("p", { class: "numbers" }, sentence), ...words);
  }

  /** The generated tokens; darker ones changed more. */
  shadedTokens(places) {
    const { tokens, then } = this.current.look;
    const following = [...tokens.slice(1), then ? [then.id, then.text] : [0, "…"]];
    const largest = Math.max(1e-9, ...places.map((one) => toNumber(one.bits)).filter(Number.isFinite));
    const spans = places.map(({ place, bits }) => {
      const span = el("span", { title: `${formatNumber(bits)} bits` }, following[place]?.[1] ?? "…");
      span.style.setProperty("--share", String((toNumber(bits) || 0) / largest));
      return span;
    });
    return el("div", {}, el("p", { class: "hint", t: "look_off_words" }), el("p", { class: "off-words" }, ...spans));
  }
}

function candidateBar({ text, probability }) {
  return { name: text, share: toNumber(probability), label: percent(toNumber(probability)), strong: true };
}

function moveFocus(event, table) {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!move || !cell) return;
  event.preventDefault();
  const row = cell.parentElement.rowIndex + move[0];
  table.rows[row]?.cells[cell.cellIndex + move[1]]?.querySelector("button")?.focus();
}
