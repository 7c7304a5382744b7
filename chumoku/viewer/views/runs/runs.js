// The view Runs: loss curves of the training runs in a folder, updated while they train, and one head over time.
//
//   GET /v1/runs                 every 2 s: the runs and their progress
//   GET /v1/runs/id?after=step   new points of a selected run
import { isAbort } from "../../core/api.js";
import { lineChart } from "../../core/charts.js";
import { el } from "../../core/dom.js";
import { formatInteger, formatNumber, toNumber } from "../../core/format.js";
import { Checkpoints } from "./checkpoints.js";

export { strings } from "./strings.js";
export const styles = ["views/look/look.css", "views/playground/playground.css", "views/runs/runs.css"];

const INTERVAL = 2000; // ms
const COLORS = ["first", "second", "third", "fourth"]; // CSS classes; at most this many runs are selected
const MEASURES = ["loss", "rate", "norm", "tokens_per_second"];

export function mount(root, context) {
  const view = new Runs(context);
  root.append(view.none, view.body);
  view.start();
  return { refresh: () => view.poll(), unmount: () => view.unmount() };
}

const legendItem = (color, text) => el("span", {}, el("i", { class: `key ${color}`, "aria-hidden": "true" }), text);

class Runs {
  constructor(context) {
    const { api, t, storedValue } = context;
    Object.assign(this, { context, api, t, runs: null, selected: [], points: new Map(), timer: 0 });
    this.abort = new AbortController();
    this.stored = { selected: storedValue("chosen", ""), log: storedValue("log", "") };
    this.list = el("ul", { class: "runs-list" });
    this.picture = el("div", { class: "runs-picture" });
    this.legend = el("div", { class: "runs-legend numbers", "aria-live": "off" });
    this.error = el("p", { class: "error", role: "alert" });
    this.log = el("input", { type: "checkbox" });
    this.log.checked = this.stored.log.get() === "1";
    this.measure = el("select", {}, ...MEASURES.map((name) => el("option", { value: name, t: "runs_" + name })));
    this.checkpoints = new Checkpoints(context, () => this.drawChart());
    const measureLabel = el("label", {}, el("span", { t: "runs_measure" }), this.measure);
    const controls = el("div", { class: "controls" }, measureLabel, el("label", {}, this.log, el("span", { t: "runs_log" })));
    const chart = el("section", { class: "card" }, controls, this.picture, this.legend);
    const side = el("section", { class: "card" }, el("h2", { t: "runs_list" }), this.list, this.error);
    this.none = el("p", { class: "empty", t: "runs_none", hidden: true });
    this.body = el("div", { class: "runs", hidden: true }, side, el("div", { class: "runs-main" }, chart, this.checkpoints.root));
  }

  start() {
    this.log.addEventListener("change", () => {
      this.stored.log.set(this.log.checked ? "1" : "");
      this.drawChart();
    });
    this.measure.addEventListener("change", () => this.drawChart());
    this.resizes = new ResizeObserver(() => this.drawChart());
    this.resizes.observe(this.picture);
    this.context.onLanguage(() => {
      if (!this.runs) return;
      this.drawList();
      this.drawChart();
      this.checkpoints.redraw();
    });
    this.context.theme.onChange(() => this.checkpoints.redraw());
    this.poll();
  }

  unmount() {
    clearTimeout(this.timer);
    this.abort.abort();
    this.resizes.disconnect();
    this.checkpoints.stop();
  }

  // ---- loading ----
  async poll() {
    clearTimeout(this.timer);
    this.abort.abort();
    const { signal } = (this.abort = new AbortController());
    try {
      const { runs } = await this.api.get("/v1/runs", { signal });
      this.error.textContent = "";
      this.setRuns(runs);
      await Promise.all(this.selected.map((name) => this.loadPoints(name, signal)));
    } catch (error) {
      if (isAbort(error)) return;
      this.error.textContent = error.message;
      if (error.status === 404) this.setRuns([]);
    }
    if (!signal.aborted) this.timer = setTimeout(() => this.poll(), document.hidden ? 5 * INTERVAL : INTERVAL);
  }

  setRuns(runs) {
    const changed = JSON.stringify(runs) !== JSON.stringify(this.runs);
    const exists = (name) => runs.some((run) => run.id === name);
    if (this.runs === null) {
      const names = this.stored.selected.get().split("\n").filter(exists);
      this.selected = names.length ? names : runs.slice(0, 1).map((run) => run.id);
    }
    this.runs = runs;
    this.none.hidden = runs.length > 0;
    this.body.hidden = runs.length === 0;
    this.selected = this.selected.filter(exists);
    if (!changed) return;
    this.drawList();
    this.showCheckpoints();
  }

  showCheckpoints() {
    this.checkpoints.show(this.runs.find((run) => run.id === this.selected[0]) ?? null);
  }

  async loadPoints(name, signal) {
    const run = this.runs.find((one) => one.id === name);
    let known = this.points.get(name) ?? [];
    if (known.length && known.at(-1).step > run.steps) known = []; // the run was started again
    const after = known.at(-1)?.step ?? 0;
    if (known.length && after >= run.steps) return;
    const { points } = await this.api.get(`/v1/runs/${encodeURIComponent(name)}?after=${after}`, { signal });
    this.points.set(name, known.concat(points));
    this.drawChart();
  }

  // ---- drawing ----
  drawList() {
    this.list.replaceChildren(...this.runs.map((run) => el("li", {}, this.runButton(run))));
  }

  runButton(run) {
    const at = this.selected.indexOf(run.id);
    const numbers = { steps: formatInteger(run.steps), planned: formatInteger(run.planned ?? 0) };
    return el(
      "button",
      { type: "button", "aria-pressed": String(at >= 0), onclick: () => this.toggle(run.id) },
      el("span", { class: "run-name" }, el("i", { class: `key ${COLORS[at] ?? ""}`, "aria-hidden": "true" }), run.id),
      el("span", { class: "hint numbers" }, this.t(run.planned ? "runs_far" : "runs_steps", numbers)),
      run.live ? el("span", { class: "live", t: "runs_live" }) : null,
    );
  }

  toggle(name) {
    const others = this.selected.filter((one) => one !== name);
    this.selected = this.selected.includes(name) ? others : [...others, name].slice(-COLORS.length);
    this.stored.selected.set(this.selected.join("\n"));
    const focused = [...this.list.querySelectorAll("button")].indexOf(document.activeElement);
    this.drawList();
    this.list.querySelectorAll("button")[focused]?.focus();
    this.showCheckpoints();
    this.drawChart();
    this.poll();
  }

  drawChart() {
    const { t } = this;
    const isLoss = this.measure.value === "loss";
    const lines = [];
    const items = [];
    this.selected.forEach((name, at) => {
      const points = this.points.get(name) ?? [];
      const series = (key) => points.filter((point) => point[key] !== undefined).map((point) => [point.step, toNumber(point[key])]);
      const values = series(this.measure.value);
      const validation = isLoss ? series("validation") : [];
      lines.push({ points: values, kind: COLORS[at] });
      if (validation.length) lines.push({ points: validation, kind: `${COLORS[at]} validation`, dots: true });
      const last = (pairs) => formatNumber(pairs.at(-1)[1], 4);
      const validationText = validation.length ? ` · ${t("runs_validation")} ${last(validation)}` : "";
      const text = () => `${name} · ${t("runs_" + this.measure.value)} ${last(values)}${validationText}`;
      if (values.length) items.push(legendItem(COLORS[at], text()));
    });
    const width = Math.max(320, Math.min(900, this.picture.clientWidth || 640));
    const marks = this.checkpoints.step() === null ? [] : [this.checkpoints.step()];
    const options = { log: this.log.checked, width, height: width < 480 ? 260 : 360, xName: t("runs_step"), label: t("runs_curve"), marks };
    this.picture.replaceChildren(lines.length ? lineChart({ lines, ...options }) : el("p", { class: "empty", t: "runs_choose" }));
    this.legend.replaceChildren(...items, ...(isLoss ? [el("span", { class: "hint", t: "runs_dots" })] : []));
  }
}
