// The attention of one head at each checkpoint of a run: move the slider to see how it develops.
import { isAbort } from "../../core/api.js";
import { debounce, el } from "../../core/dom.js";
import { formatInteger } from "../../core/format.js";
import { unpackMap } from "../../core/heatmap.js";
import { makeMapView } from "../../core/map_view.js";

const MAPS = { decoder: ["decoder"], encoder: ["encoder"], "encoder-decoder": ["cross", "encoder", "decoder"] };
const EXAMPLE = { decoder: "To be, or not to be", encoder: "A cat sat on the mat.", "encoder-decoder": "猫が好きです。" };
const MAX_CACHED = 60;

export class Checkpoints {
  /** onStep() is called when another checkpoint is selected. */
  constructor({ api, t, storedValue, language }, onStep) {
    Object.assign(this, { api, t, language, onStep, run: null, abort: null });
    this.stored = storedValue("text", "");
    this.cache = new Map(); // request → response, so that sliding back needs no request
    this.later = debounce(() => this.load(), 80);
    this.text = el("input", { type: "text", maxlength: 2000, "t-label": "runs_text", spellcheck: "false" });
    this.map = el("select", {});
    this.layer = el("input", { type: "number", min: 0, max: 1023, value: "0" });
    this.head = el("input", { type: "number", min: 0, max: 1023, value: "0" });
    this.slider = el("input", { type: "range", min: 0, max: 0, value: "0", class: "runs-slide", "t-label": "runs_checkpoint" });
    this.stepLabel = el("output", { class: "numbers" });
    this.error = el("p", { class: "error", role: "alert" });
    this.notices = el("p", { class: "cut" });
    this.mapView = makeMapView(t);
    this.none = el("p", { class: "hint", t: "runs_no_checkpoints" });
    this.form = this.layout();
    const title = [el("h2", { t: "runs_head_forms" }), el("p", { class: "hint", t: "runs_head_say" })];
    this.root = el("section", { class: "card" }, ...title, this.none, this.form);
    this.listen();
  }

  layout() {
    const field = (key, input) => el("label", {}, el("span", { t: key }), input);
    return el(
      "div",
      { class: "runs-watch" },
      el("label", { class: "runs-text" }, el("span", { t: "runs_text" }), this.text),
      el("div", { class: "controls" }, field("map_which", this.map), field("runs_layer", this.layer), field("runs_head", this.head)),
      el("label", { class: "slider" }, el("span", { t: "runs_checkpoint" }), this.slider, this.stepLabel),
      this.error,
      this.notices,
      this.mapView.root,
    );
  }

  listen() {
    this.slider.addEventListener("input", this.later);
    this.text.addEventListener("input", () => {
      this.stored.set(this.text.value);
      this.later();
    });
    for (const input of [this.map, this.layer, this.head]) input.addEventListener("change", this.later.now);
  }

  show(run) {
    const otherRun = run?.id !== this.run?.id;
    const atLast = Number(this.slider.value) === Number(this.slider.max);
    this.run = run;
    this.root.hidden = !run;
    if (otherRun) this.stop();
    if (!run) return;
    const count = run.checkpoints.length;
    this.none.hidden = count > 0;
    this.form.hidden = count === 0;
    this.slider.max = String(Math.max(0, count - 1));
    if (otherRun || atLast) this.slider.value = this.slider.max;
    if (otherRun) this.resetFields(run);
    if (count) this.later();
  }

  resetFields({ kind, layers, heads }) {
    this.text.value = this.stored.get() || EXAMPLE[kind];
    this.map.replaceChildren(...MAPS[kind].map((name) => el("option", { value: name, t: "map_kind_" + name })));
    if (layers) this.layer.max = String(layers - 1);
    if (heads) this.head.max = String(heads - 1);
    for (const input of [this.layer, this.head]) if (Number(input.value) > Number(input.max)) input.value = input.max;
  }

  /** The step of the selected checkpoint, or null. */
  step() {
    return this.run?.checkpoints[Number(this.slider.value)] ?? null;
  }

  async load() {
    this.abort?.abort();
    if (this.step() === null || !this.text.value.trim()) return;
    this.stepLabel.textContent = this.t("runs_at", { step: formatInteger(this.step()) });
    this.onStep();
    const [layer, head] = [Number(this.layer.value) || 0, Number(this.head.value) || 0];
    const body = { checkpoint: this.step(), text: this.text.value, map: this.map.value, layer, head };
    const key = this.run.id + JSON.stringify(body);
    const path = `/v1/runs/${encodeURIComponent(this.run.id)}/look`;
    const { signal } = (this.abort = new AbortController());
    try {
      const look = this.cache.get(key) ?? (await this.api.post(path, body, { signal }));
      if (this.cache.size > MAX_CACHED) this.cache.clear();
      this.cache.set(key, look);
      this.error.textContent = "";
      this.notices.textContent = look.notices.map((pair) => pair[this.language() === "ja" ? 1 : 0]).join(" ");
      this.mapView.show(unpackMap({ ...look, first_layer: layer }), 0, 0);
    } catch (error) {
      if (!isAbort(error)) this.error.textContent = error.message;
    }
  }

  redraw() {
    if (this.run) this.load();
  }

  stop() {
    this.later.stop();
    this.abort?.abort();
  }
}
