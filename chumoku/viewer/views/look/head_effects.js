// Which heads matter: the effect of every head and feed-forward when it alone is switched off.
//
//   POST /v1/look/effects    once per layer, so that the progress is shown and the user can stop between two layers
import { isAbort } from "../../core/api.js";
import { el } from "../../core/dom.js";
import { formatNumber, toNumber } from "../../core/format.js";

const RANKED = 5;

/** The name of a part: a head, or the feed-forward, of a layer. */
export const partKey = ({ part, layer, head, cross }) => `${part}.${layer}.${cross ? "cross." : ""}${head ?? "feedforward"}`;

export class HeadEffects {
  /** onChange() is called when more effects are known. */
  constructor(t, api, onChange) {
    Object.assign(this, { t, api, onChange, found: new Map(), measure: "bits", layers: [], request: null, abort: null, done: 0 });
    this.start = el("button", { type: "button", t: "look_matter", onclick: () => this.run() });
    this.end = el("button", { type: "button", t: "look_matter_stop", hidden: true, onclick: () => this.stop() });
    this.bar = el("progress", { value: 0, hidden: true, "t-label": "look_matter" });
    this.message = el("span", { class: "hint numbers", role: "status" });
    this.error = el("p", { class: "error", role: "alert" });
    this.root = el("div", { class: "effects" }, el("div", { class: "controls" }, this.start, this.end, this.bar, this.message), this.error);
  }

  /** `request`: the fields of a request about the same forward pass. */
  show({ encoder, decoder }, request) {
    this.stop();
    const layersOf = (part, count) => Array.from({ length: count }, (_, layer) => ({ part, layer }));
    Object.assign(this, { request, done: 0, layers: [...layersOf("decoder", decoder), ...layersOf("encoder", encoder)] });
    this.found.clear();
    this.error.textContent = "";
    this.draw();
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
    this.draw();
  }

  /** Ask for the layers that are still missing. */
  async run() {
    const { signal } = (this.abort = new AbortController());
    if (this.done === this.layers.length) this.done = 0;
    this.error.textContent = "";
    this.draw();
    try {
      while (this.done < this.layers.length) {
        const body = { ...this.request, ...this.layers[this.done] };
        const { effects, measure } = await this.api.post("/v1/look/effects", body, { signal });
        this.measure = measure;
        for (const { part, effect } of effects) this.found.set(partKey(part), toNumber(effect));
        this.done++;
        this.draw();
        this.onChange();
      }
    } catch (error) {
      if (isAbort(error)) return;
      this.error.textContent = error.message;
    }
    this.abort = null;
    this.draw();
  }

  draw() {
    const [running, all] = [this.abort !== null, this.layers.length];
    this.start.hidden = running;
    this.end.hidden = this.bar.hidden = !running;
    Object.assign(this.bar, { max: Math.max(1, all), value: this.done });
    const finished = this.done === all ? "look_matter_done" : "look_matter_some";
    this.message.textContent = this.done || running ? this.t(running ? "look_matter_some" : finished, { done: this.done, all, count: RANKED }) : "";
  }

  /** → { effect, share of the largest, rank from 1 or null, text }, or null if the effect is not known yet. */
  of(part) {
    const effect = this.found.get(partKey(part));
    if (effect === undefined) return null;
    const others = [...this.found.values()].filter(Number.isFinite);
    const rank = 1 + others.filter((one) => one > effect).length;
    const text = this.t(this.measure === "bits" ? "look_matter_bits" : "look_matter_cosine", { effect: formatNumber(effect) });
    return { share: (effect || 0) / Math.max(1e-9, ...others), rank: rank <= RANKED && effect > 0 ? rank : null, text };
  }
}
