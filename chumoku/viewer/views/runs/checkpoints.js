// A head through the checkpoints of a run: slide, and watch it form.
import { dropped } from "../../core/api.js";
import { el, rested } from "../../core/dom.js";
import { whole } from "../../core/figures.js";
import { opened } from "../../core/heatmap.js";
import { makeMapView } from "../../core/map_view.js";

const MAPS = { decoder: ["decoder"], encoder: ["encoder"], "encoder-decoder": ["cross", "encoder", "decoder"] };
const EXAMPLE = { decoder: "To be, or not to be", encoder: "A cat sat on the mat.", "encoder-decoder": "猫が好きです。" };

/** → { root, show(run), step(), redraw(), stop() }; onStep() when another checkpoint is looked at. */
export function makeCheckpoints({ api, t, keep, language }) {
  const kept = keep("text", "");
  const text = el("input", { type: "text", maxlength: 2000, "t-label": "runs_text", spellcheck: "false" });
  const map = el("select", {});
  const layer = el("input", { type: "number", min: 0, max: 1023, value: "0" });
  const head = el("input", { type: "number", min: 0, max: 1023, value: "0" });
  const slide = el("input", { type: "range", min: 0, max: 0, value: "0", class: "runs-slide", "t-label": "runs_checkpoint" });
  const told = el("output", { class: "numbers" });
  const error = el("p", { class: "error", role: "alert" });
  const notices = el("p", { class: "cut" });
  const view = makeMapView(t);
  const field = (key, input) => el("label", {}, el("span", { t: key }), input);
  const work = el(
    "div",
    { class: "runs-watch" },
    el("label", { class: "runs-text" }, el("span", { t: "runs_text" }), text),
    el("div", { class: "controls" }, field("map_which", map), field("runs_layer", layer), field("runs_head", head)),
    el("label", { class: "slider" }, el("span", { t: "runs_checkpoint" }), slide, told),
    error,
    notices,
    view.root,
  );
  const none = el("p", { class: "hint", t: "runs_no_checkpoints" });
  const root = el("section", { class: "card" }, el("h2", { t: "runs_head_forms" }), el("p", { class: "hint", t: "runs_head_say" }), none, work);
  const found = new Map(); // answers, so that sliding back is at once
  let run = null;
  let abort = null;
  const made = { root, onStep: () => {}, show, step, redraw: () => run && ask(), stop };

  function show(next) {
    const other = next?.id !== run?.id;
    const last = !other && Number(slide.value) === Number(slide.max);
    run = next;
    root.hidden = !run;
    if (other) stop();
    if (!run) return;
    const steps = run.checkpoints;
    none.hidden = steps.length > 0;
    work.hidden = steps.length === 0;
    slide.max = String(Math.max(0, steps.length - 1));
    if (other || last) slide.value = slide.max;
    if (other) {
      text.value = kept.get() || EXAMPLE[run.kind];
      map.replaceChildren(...MAPS[run.kind].map((name) => el("option", { value: name, t: "map_kind_" + name })));
      if (run.layers) layer.max = String(run.layers - 1);
      if (run.heads) head.max = String(run.heads - 1);
      for (const input of [layer, head]) if (Number(input.value) > Number(input.max)) input.value = input.max;
    }
    if (steps.length) later();
  }

  function step() {
    return run?.checkpoints[Number(slide.value)] ?? null;
  }

  async function ask() {
    abort?.abort();
    if (step() === null || !text.value.trim()) return;
    told.textContent = t("runs_at", { step: whole(step()) });
    made.onStep();
    const body = { checkpoint: step(), text: text.value, map: map.value, layer: Number(layer.value) || 0, head: Number(head.value) || 0 };
    const key = run.id + JSON.stringify(body);
    const mine = (abort = new AbortController());
    try {
      const answer = found.get(key) ?? (await api.post(`/v1/runs/${encodeURIComponent(run.id)}/look`, body, { signal: mine.signal }));
      if (found.size > 60) found.clear();
      found.set(key, answer);
      error.textContent = "";
      notices.textContent = answer.notices.map((pair) => pair[language() === "ja" ? 1 : 0]).join(" ");
      view.show(opened({ ...answer, first_layer: body.layer }), 0, 0);
    } catch (failure) {
      if (!dropped(failure)) error.textContent = failure.message;
    }
  }

  function stop() {
    later.stop();
    abort?.abort();
  }

  const later = rested(ask, 80);
  slide.addEventListener("input", later);
  text.addEventListener("input", () => {
    kept.set(text.value);
    later();
  });
  for (const input of [map, layer, head]) input.addEventListener("change", later.now);
  return made;
}
