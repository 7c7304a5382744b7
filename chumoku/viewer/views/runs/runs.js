// The view Runs: loss curves of the runs in a folder, live while they train, and one head through the checkpoints.
//
//   GET /v1/runs                 every 2 s: which there are, how far they are
//   GET /v1/runs/id?after=step   what a chosen one told since
import { dropped } from "../../core/api.js";
import { curves } from "../../core/charts.js";
import { el } from "../../core/dom.js";
import { figure, numeric, whole } from "../../core/figures.js";
import { makeCheckpoints } from "./checkpoints.js";

export { strings } from "./strings.js";
export const styles = ["views/look/look.css", "views/playground/playground.css", "views/runs/runs.css"];

const EVERY = 2000; // ms
const KINDS = ["first", "second", "third", "fourth"]; // colors; as many runs at once
const MEASURES = ["loss", "rate", "norm", "tokens_per_second"];

export function mount(root, context) {
  const { api, t } = context;
  const kept = { chosen: context.keep("chosen", ""), log: context.keep("log", "") };
  const state = { runs: null, chosen: [], points: new Map(), timer: 0, abort: new AbortController(), measure: "loss" };
  const list = el("ul", { class: "runs-list" });
  const picture = el("div", { class: "runs-picture" });
  const legend = el("div", { class: "runs-legend numbers", "aria-live": "off" });
  const error = el("p", { class: "error", role: "alert" });
  const log = el("input", { type: "checkbox" });
  log.checked = kept.log.get() === "1";
  const measure = el("select", {}, ...MEASURES.map((name) => el("option", { value: name, t: "runs_" + name })));
  const checkpoints = makeCheckpoints(context);
  const controls = el("div", { class: "controls" }, el("label", {}, el("span", { t: "runs_measure" }), measure), el("label", {}, log, el("span", { t: "runs_log" })));
  const chart = el("section", { class: "card" }, controls, picture, legend);
  const none = el("p", { class: "empty", t: "runs_none", hidden: true });
  const side = el("section", { class: "card" }, el("h2", { t: "runs_list" }), list, error);
  const body = el("div", { class: "runs" }, side, el("div", { class: "runs-main" }, chart, checkpoints.root));
  root.append(none, body);
  body.hidden = true;

  // ---- what there is ----
  async function poll() {
    clearTimeout(state.timer);
    state.abort.abort();
    const { signal } = (state.abort = new AbortController());
    try {
      const told = await api.get("/v1/runs", { signal });
      error.textContent = "";
      listed(told.runs);
      await Promise.all(state.chosen.map((name) => more(name, signal)));
    } catch (failure) {
      if (dropped(failure)) return;
      error.textContent = failure.message;
      if (failure.status === 404) listed([]);
    }
    if (!signal.aborted) state.timer = setTimeout(poll, document.hidden ? 5 * EVERY : EVERY);
  }

  function listed(runs) {
    const changed = JSON.stringify(runs) !== JSON.stringify(state.runs);
    const first = state.runs === null;
    state.runs = runs;
    none.hidden = runs.length > 0;
    body.hidden = runs.length === 0;
    if (first) {
      const names = kept.chosen.get().split("\n").filter((name) => runs.some((run) => run.id === name));
      state.chosen = names.length ? names : runs.slice(0, 1).map((run) => run.id);
    }
    state.chosen = state.chosen.filter((name) => runs.some((run) => run.id === name));
    if (!changed) return;
    drawList();
    checkpoints.show(runs.find((run) => run.id === state.chosen[0]) ?? null);
  }

  async function more(name, signal) {
    const run = state.runs.find((one) => one.id === name);
    let known = state.points.get(name) ?? [];
    if (known.length && known.at(-1).step > run.steps) known = []; // it began again
    const after = known.at(-1)?.step ?? 0;
    if (known.length && after >= run.steps) return;
    const told = await api.get(`/v1/runs/${encodeURIComponent(name)}?after=${after}`, { signal });
    state.points.set(name, known.concat(told.points));
    draw();
  }

  // ---- drawing ----
  function drawList() {
    list.replaceChildren(
      ...state.runs.map((run) => {
        const at = state.chosen.indexOf(run.id);
        const far = t(run.planned ? "runs_far" : "runs_steps", { steps: whole(run.steps), planned: whole(run.planned ?? 0) });
        const button = el(
          "button",
          { type: "button", "aria-pressed": String(at >= 0), onclick: () => toggle(run.id) },
          el("span", { class: "run-name" }, el("i", { class: `key ${KINDS[at] ?? ""}`, "aria-hidden": "true" }), run.id),
          el("span", { class: "hint numbers" }, far),
          run.live ? el("span", { class: "live", t: "runs_live" }) : null,
        );
        return el("li", {}, button);
      }),
    );
  }

  function toggle(name) {
    const had = state.chosen.includes(name);
    state.chosen = had ? state.chosen.filter((one) => one !== name) : [...state.chosen, name].slice(-KINDS.length);
    kept.chosen.set(state.chosen.join("\n"));
    const at = [...list.querySelectorAll("button")].indexOf(document.activeElement);
    drawList();
    list.querySelectorAll("button")[at]?.focus();
    checkpoints.show(state.runs.find((run) => run.id === state.chosen[0]) ?? null);
    draw();
    poll();
  }

  function draw() {
    const lines = [];
    const said = [];
    state.chosen.forEach((name, at) => {
      const points = state.points.get(name) ?? [];
      const pairs = (key) => points.filter((point) => point[key] !== undefined).map((point) => [point.step, numeric(point[key])]);
      const validation = state.measure === "loss" ? pairs("validation") : [];
      lines.push({ points: pairs(state.measure), kind: KINDS[at] });
      if (validation.length) lines.push({ points: validation, kind: `${KINDS[at]} validation`, dots: true });
      const last = pairs(state.measure).at(-1);
      const judged = validation.length ? ` · ${t("runs_validation")} ${figure(validation.at(-1)[1], 4)}` : "";
      if (last) said.push(item(KINDS[at], `${name} · ${t("runs_" + state.measure)} ${figure(last[1], 4)}${judged}`));
    });
    const width = Math.max(320, Math.min(900, picture.clientWidth || 640));
    const marks = checkpoints.step() === null ? [] : [checkpoints.step()];
    const size = { width, height: width < 480 ? 260 : 360 };
    const drawn = () => curves({ lines, log: log.checked, ...size, xName: t("runs_step"), label: t("runs_curve"), marks });
    picture.replaceChildren(lines.length ? drawn() : el("p", { class: "empty", t: "runs_choose" }));
    legend.replaceChildren(...said, ...(state.measure === "loss" ? [el("span", { class: "hint", t: "runs_dots" })] : []));
  }

  const item = (kind, text) => el("span", {}, el("i", { class: `key ${kind}`, "aria-hidden": "true" }), text);

  // ---- listening ----
  checkpoints.onStep = draw;
  log.addEventListener("change", () => {
    kept.log.set(log.checked ? "1" : "");
    draw();
  });
  measure.addEventListener("change", () => {
    state.measure = measure.value;
    draw();
  });
  const sized = new ResizeObserver(() => draw());
  sized.observe(picture);
  context.onLanguage(() => {
    if (!state.runs) return;
    drawList();
    draw();
    checkpoints.redraw();
  });
  context.theme.onChange(() => checkpoints.redraw());
  poll();
  return {
    refresh: poll,
    unmount() {
      clearTimeout(state.timer);
      state.abort.abort();
      sized.disconnect();
      checkpoints.stop();
    },
  };
}
