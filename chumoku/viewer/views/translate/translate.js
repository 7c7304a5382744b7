// The view Translate: text on the left, its translation on the right, and below what happened in between.
//
//   lines of the text   →  POST /v1/translate { alignment, n }  →  words, where they looked, what else might have been
//   the line looked at  →  POST /v1/translate { tree }          →  the beam tree, asked for only while it is open
import { dropped } from "../../core/api.js";
import { el, figure, invite, rested } from "../../core/dom.js";
import { cutLines } from "../../core/text.js";
import { Alignment } from "./alignment.js";
import { layout, words } from "./layout.js";
import { makeSteps } from "./candidates.js";
import { makeTree, MOST_BEAM } from "./beam_tree.js";

export { strings } from "./strings.js";
export const styles = ["views/translate/translate.css"];
export const accepts = (model) => model.kind === "encoder-decoder";

const LINES = 64;
const LETTERS = 2000;
const LESS = 0.7; // of each line is sent after the model could not read so much
const ATTEMPTS = 14;
const WAIT = 350; // ms without a key before the text is sent
const NBEST = 5;

export function mount(root, context) {
  const view = new Translate(context);
  root.append(view.parts.root);
  view.begin();
  return { unmount: () => view.unmount(), refresh: () => view.later.now() };
}

class Translate {
  constructor(context) {
    this.context = context;
    this.answer = []; // one for each line
    this.last = null; // what was asked, as it was sent
    this.line = 0; // looked at
    this.hypothesis = 0;
    this.abort = null;
    this.treeAbort = null;
    this.later = rested(() => this.translate(), WAIT);
    const { keep } = context;
    this.kept = { text: keep("text"), beam: keep("beam", "4"), penalty: keep("penalty", "1"), into: keep("into") };
    const parts = (this.parts = layout(this.kept));
    this.alignment = new Alignment(context.t, (side, place) => {
      this.steps.point(side === "target" ? place : null);
      this.mark(side === "target" ? place : null);
    });
    this.steps = makeSteps(context.t, (place) => this.alignment.point("target", place));
    this.tree = makeTree(context.t);
    parts.below.append(this.alignment.root, parts.others, this.steps.root, parts.treeBox);
    parts.treeBox.append(this.tree.root);
    this.watched = new ResizeObserver(() => this.alignment.refit());
  }

  begin() {
    const { parts, later, context } = this;
    parts.source.addEventListener("input", () => this.typed());
    parts.source.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      later.now();
    });
    for (const name of ["beam", "into", "penalty"])
      parts[name].addEventListener("change", () => {
        this.kept[name].set(parts[name].value);
        later.now();
      });
    parts.now.addEventListener("click", later.now);
    parts.clear.addEventListener("click", () => this.clear());
    parts.copy.addEventListener("click", () => this.copy());
    parts.treeBox.addEventListener("toggle", () => this.grow());
    this.watched.observe(this.alignment.root);
    context.onModel(() => {
      this.offerLanguages();
      later.now();
    });
    context.onLanguage(() => {
      this.draw();
      this.grow();
    });
    this.offerLanguages();
    if (parts.source.value.trim()) later.now();
    else this.show([]);
    invite(parts.source);
  }

  unmount() {
    this.later.stop();
    this.watched.disconnect();
    this.abort?.abort();
    this.treeAbort?.abort();
  }

  typed() {
    this.kept.text.set(this.parts.source.value);
    this.later();
  }

  clear() {
    this.parts.source.value = "";
    this.typed();
    this.later.now();
    this.parts.source.focus();
  }

  async copy() {
    const text = this.answer.map((one, line) => this.said(one, line).text).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      this.context.notice(this.context.t("tr_copied"));
    } catch {
      getSelection().selectAllChildren(this.parts.answer); // no right to the clipboard: ready for Ctrl+C
    }
  }

  // ---- asking ----
  /** What is asked for every line; at each attempt with less of each. */
  body(attempt) {
    const { parts, context } = this;
    const longest = Math.floor(LETTERS * LESS ** attempt);
    const { lines, cut } = cutLines(parts.source.value, LINES, longest);
    parts.cut.textContent = cut ? context.t(cut, { most: cut === "tr_cut_lines" ? LINES : longest }) : "";
    const { id, into } = context.model();
    const penalty = Math.min(10, Math.max(-10, Number(parts.penalty.value) || 0));
    const target = into?.length ? { into: parts.into.value } : {};
    return { model: id, beam: Number(parts.beam.value), length_penalty: penalty, text: lines, ...target };
  }

  async translate() {
    this.abort?.abort();
    this.treeAbort?.abort();
    const mine = (this.abort = new AbortController());
    const { parts } = this;
    parts.answer.setAttribute("aria-busy", "true");
    try {
      const told = await this.asked(mine.signal);
      parts.error.textContent = "";
      this.show(told);
    } catch (error) {
      if (dropped(error)) return; // by a later one, or by leaving
      parts.error.textContent = error.message;
    }
    parts.answer.removeAttribute("aria-busy");
  }

  async asked(signal) {
    for (let attempt = 0; ; attempt++) {
      const body = this.body(attempt);
      this.last = body;
      if (!body.text.length) return [];
      try {
        const wanted = { ...body, n: Math.min(body.beam, NBEST), alignment: true };
        return (await this.context.api.post("/v1/translate", wanted, { signal })).translations;
      } catch (error) {
        if (error.code !== "context_length_exceeded" || attempt === ATTEMPTS) throw error;
      }
    }
  }

  /** The beam tree of the line looked at. */
  async grow() {
    this.treeAbort?.abort();
    if (!this.parts.treeBox.open || !this.answer.length) return;
    if (this.last.beam > MOST_BEAM) return void this.tree.say(this.context.t("tr_tree_many", { most: MOST_BEAM }));
    const mine = (this.treeAbort = new AbortController());
    try {
      const asked = { ...this.last, text: this.last.text[this.line], tree: true };
      const told = await this.context.api.post("/v1/translate", asked, { signal: mine.signal });
      this.tree.show(told.translations[0].tree);
    } catch (error) {
      if (!dropped(error)) this.tree.say(error.message);
    }
  }

  offerLanguages() {
    const { into } = this.parts;
    const known = this.context.model().into ?? [];
    into.replaceChildren(...known.map((one) => el("option", { value: one }, one)));
    into.value = known.includes(this.kept.into.get()) ? this.kept.into.get() : known[0] ?? "";
    into.parentElement.hidden = known.length === 0;
  }

  // ---- showing ----
  said(one, line) {
    return one.hypotheses[line === this.line ? this.hypothesis : 0];
  }

  show(answer) {
    this.answer = answer;
    this.line = Math.min(this.line, Math.max(0, answer.length - 1));
    this.hypothesis = 0;
    this.parts.below.hidden = answer.length === 0;
    this.parts.copy.disabled = answer.length === 0;
    this.draw();
    this.grow();
  }

  draw() {
    const { answer, parts } = this;
    parts.answer.replaceChildren(...answer.map((one, line) => this.paragraph(one, line)));
    if (!answer.length) return void parts.answer.append(el("p", { class: "waiting", t: "tr_waiting" }));
    const one = answer[this.line];
    this.alignment.show(one.source, this.said(one, this.line));
    this.steps.show(this.said(one, this.line));
    this.listOthers(one.hypotheses);
  }

  paragraph(one, line) {
    const here = line === this.line;
    const inside = words(this.said(one, line));
    const at = (event) => event.target.closest?.("[data-place]")?.dataset.place;
    const pointed = {
      onpointerover: (event) => this.alignment.point("target", at(event) === undefined ? null : Number(at(event))),
      onpointerleave: () => this.alignment.point(null, null),
    };
    if (this.answer.length === 1) return el("p", { class: "line", ...pointed }, ...inside);
    const choose = () => this.choose(line);
    const press = (event) => event.key === "Enter" && choose();
    if (here) return el("p", { class: "line here", "aria-current": "true", tabindex: 0, ...pointed }, ...inside);
    return el("p", { class: "line", tabindex: 0, onclick: choose, onkeydown: press }, ...inside);
  }

  choose(line) {
    this.line = line;
    this.hypothesis = 0;
    this.draw();
    this.grow();
    this.parts.answer.children[line].focus({ preventScroll: true });
  }

  listOthers(hypotheses) {
    const { t } = this.context;
    const items = hypotheses.map((one, at) => {
      const choose = () => {
        this.hypothesis = at;
        this.draw();
        this.parts.others.querySelectorAll("button")[at].focus();
      };
      const score = el("span", { class: "hint numbers" }, t("tr_score", { score: figure(one.score, 3) }));
      const pressed = { type: "button", "aria-pressed": String(at === this.hypothesis), onclick: choose };
      return el("li", {}, el("button", pressed, el("span", {}, one.text), score));
    });
    this.parts.others.replaceChildren(el("h2", { t: "tr_others" }), el("ol", { class: "nbest" }, ...items));
    this.parts.others.hidden = hypotheses.length < 2;
  }

  /** Mark in the translation the word pointed at elsewhere. */
  mark(place) {
    const { answer } = this.parts;
    for (const word of answer.querySelectorAll(".at")) word.classList.remove("at");
    answer.children[this.line]?.querySelector(`[data-place="${place}"]`)?.classList.add("at");
  }
}
