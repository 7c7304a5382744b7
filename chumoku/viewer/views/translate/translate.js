// The view Translate: the text, its translation, and below them how it was found.
//
//   all lines            →  POST /v1/translate { alignment, n }  →  translations, attention, candidates
//   the selected line    →  POST /v1/translate { tree }          →  the beam tree, requested only while it is open
import { isAbort } from "../../core/api.js";
import { debounce, el, focusWithoutKeyboard, formatFixed } from "../../core/dom.js";
import { cutLines } from "../../core/text.js";
import { Alignment } from "./alignment.js";
import { layout, wordSpans } from "./layout.js";
import { makeCandidates } from "./candidates.js";
import { mergeBytes } from "./characters.js";
import { makeTree, MAX_BEAM } from "./beam_tree.js";

export { strings } from "./strings.js";
export const styles = ["views/translate/translate.css"];
export const accepts = (model) => model.kind === "encoder-decoder";

const MAX_LINES = 64;
const MAX_CHARS = 2000; // per line
const LESS = 0.7; // of each line is sent at the next attempt, if the text is too long for the model
const ATTEMPTS = 14;
const WAIT = 350; // ms after the last keystroke before the text is sent
const NBEST = 5;

export function mount(root, context) {
  const view = new Translate(context);
  root.append(view.parts.root);
  view.start();
  return { unmount: () => view.unmount(), refresh: () => view.later.now() };
}

class Translate {
  constructor(context) {
    this.context = context;
    this.translations = []; // one per line
    this.request = null; // the last one
    this.examples = []; // of the model
    this.line = 0; // selected
    this.hypothesis = 0;
    this.abort = null;
    this.treeAbort = null;
    this.later = debounce(() => this.translate(), WAIT);
    const stored = context.storedValue;
    this.stored = { text: stored("text", null), beam: stored("beam", "4"), penalty: stored("penalty", "1") };
    Object.assign(this.stored, { from: stored("from"), into: stored("into") });
    const parts = (this.parts = layout(this.stored));
    this.alignment = new Alignment(context.t, (side, place) => {
      this.candidates.point(side === "target" ? place : null);
      this.highlight(side === "target" ? place : null);
    });
    this.candidates = makeCandidates(context.t, (place) => this.alignment.point("target", place));
    this.tree = makeTree(context.t);
    parts.below.append(this.alignment.root, parts.others, this.candidates.root, parts.treeBox);
    parts.treeBox.append(this.tree.root);
    this.resizes = new ResizeObserver(() => this.alignment.resize());
  }

  start() {
    const { parts, later, context } = this;
    parts.source.addEventListener("input", () => this.onInput());
    parts.source.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      later.now();
    });
    for (const name of ["beam", "from", "into", "penalty"])
      parts[name].addEventListener("change", () => {
        this.stored[name].set(parts[name].value);
        later.now();
      });
    parts.now.addEventListener("click", later.now);
    parts.clear.addEventListener("click", () => this.clear());
    parts.copy.addEventListener("click", () => this.copy());
    parts.treeBox.addEventListener("toggle", () => this.loadTree());
    this.resizes.observe(this.alignment.root);
    context.onModel(() => {
      this.offerLanguages();
      this.swapExample();
      this.offerExamples();
      later.now();
    });
    context.onLanguage(() => {
      this.draw();
      this.loadTree();
    });
    this.offerLanguages();
    this.offerExamples();
    this.startWithExample();
    this.show([]);
    if (parts.source.value.trim()) later.now();
    focusWithoutKeyboard(parts.source);
  }

  unmount() {
    this.later.stop();
    this.resizes.disconnect();
    this.abort?.abort();
    this.treeAbort?.abort();
  }

  onInput() {
    this.stored.text.set(this.parts.source.value);
    this.later();
  }

  clear() {
    this.setText("");
    this.parts.source.focus();
  }

  async copy() {
    const text = this.translations.map((one, line) => this.hypothesisOf(one, line).text).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      this.context.notice(this.context.t("tr_copied"));
    } catch {
      getSelection().selectAllChildren(this.parts.answer); // the clipboard is not allowed: select the text for Ctrl+C
    }
  }

  // ---- requests ----
  /** The body of a request; later attempts send less of each line. */
  requestBody(attempt) {
    const { parts, context } = this;
    const longest = Math.floor(MAX_CHARS * LESS ** attempt);
    const { lines, cut } = cutLines(parts.source.value, MAX_LINES, longest);
    parts.cut.textContent = cut ? context.t(cut, { most: cut === "tr_cut_lines" ? MAX_LINES : longest }) : "";
    const { id, into, source_languages } = context.model();
    const penalty = Math.min(10, Math.max(-10, Number(parts.penalty.value) || 0));
    const languages = {
      ...(into?.length ? { into: parts.into.value } : {}),
      ...(source_languages?.length ? { source_language: parts.from.value } : {}),
    };
    return { model: id, beam: Number(parts.beam.value), length_penalty: penalty, text: lines, ...languages };
  }

  async translate() {
    this.abort?.abort();
    this.treeAbort?.abort();
    const { signal } = (this.abort = new AbortController());
    const { parts } = this;
    parts.answer.setAttribute("aria-busy", "true");
    try {
      const translations = await this.requestTranslations(signal);
      parts.error.textContent = "";
      this.show(translations);
    } catch (error) {
      if (isAbort(error)) return; // by a later request, or by leaving the view
      parts.error.textContent = error.message;
    }
    parts.answer.removeAttribute("aria-busy");
  }

  async requestTranslations(signal) {
    for (let attempt = 0; ; attempt++) {
      const body = this.requestBody(attempt);
      this.request = body;
      if (!body.text.length) return [];
      try {
        const options = { ...body, n: Math.min(body.beam, NBEST), alignment: true };
        return (await this.context.api.post("/v1/translate", options, { signal })).translations.map(mergeBytes);
      } catch (error) {
        if (error.code !== "context_length_exceeded" || attempt === ATTEMPTS) throw error;
      }
    }
  }

  /** Load the beam tree of the selected line. */
  async loadTree() {
    this.treeAbort?.abort();
    if (!this.parts.treeBox.open || !this.translations.length) return;
    if (this.request.beam > MAX_BEAM) return void this.tree.say(this.context.t("tr_tree_many", { most: MAX_BEAM }));
    const { signal } = (this.treeAbort = new AbortController());
    try {
      const body = { ...this.request, text: this.request.text[this.line], tree: true };
      const { translations } = await this.context.api.post("/v1/translate", body, { signal });
      this.tree.show(translations[0].tree);
    } catch (error) {
      if (!isAbort(error)) this.tree.say(error.message);
    }
  }

  offerLanguages() {
    const { into, source_languages } = this.context.model();
    for (const [name, known] of [["from", source_languages ?? []], ["into", into ?? []]]) {
      const [select, chosen] = [this.parts[name], this.stored[name].get()];
      select.replaceChildren(...known.map((one) => el("option", { value: one }, one)));
      select.value = known.includes(chosen) ? chosen : known[0] ?? "";
      select.parentElement.hidden = known.length === 0;
    }
  }

  /** Sentences that the server suggests for this model; a click translates one. */
  offerExamples() {
    const { examples } = this.parts;
    this.examples = this.context.model().examples ?? [];
    const buttons = this.examples.map((text) =>
      el("button", { type: "button", class: "quiet", onclick: () => this.setText(text) }, text),
    );
    examples.replaceChildren(el("span", { class: "hint", t: "tr_examples" }), ...buttons);
    examples.hidden = buttons.length === 0;
  }

  /** Until the user has typed or cleared a text, the first example is the text; typing replaces it. */
  startWithExample() {
    const { source } = this.parts;
    if (this.stored.text.get() !== null || !this.examples.length) return;
    source.value = this.examples[0];
    source.select();
  }

  /** If the text is an example of the last model, replace it with that of the new one. */
  swapExample() {
    const text = this.context.model().examples?.[this.examples.indexOf(this.parts.source.value)];
    if (text) this.setText(text);
  }

  setText(text) {
    this.parts.source.value = text;
    this.onInput();
    this.later.now();
  }

  // ---- drawing ----
  /** The shown hypothesis of a line. */
  hypothesisOf(one, line) {
    return one.hypotheses[line === this.line ? this.hypothesis : 0];
  }

  show(translations) {
    this.translations = translations;
    this.line = Math.min(this.line, Math.max(0, translations.length - 1));
    this.hypothesis = 0;
    this.parts.below.hidden = translations.length === 0;
    this.parts.copy.disabled = translations.length === 0;
    this.draw();
    this.loadTree();
  }

  draw() {
    const { translations, parts } = this;
    parts.answer.replaceChildren(...translations.map((one, line) => this.paragraph(one, line)));
    if (!translations.length) return void parts.answer.append(el("p", { class: "waiting", t: "tr_waiting" }));
    const one = translations[this.line];
    this.alignment.show(one.source, this.hypothesisOf(one, this.line), one.stand_ins);
    this.candidates.show(this.hypothesisOf(one, this.line));
    this.listOthers(one.hypotheses);
  }

  paragraph(one, line) {
    const here = line === this.line;
    const spans = wordSpans(this.hypothesisOf(one, line), one.stand_ins);
    const at = (event) => event.target.closest?.("[data-place]")?.dataset.place;
    const pointerEvents = {
      onpointerover: (event) => this.alignment.point("target", at(event) === undefined ? null : Number(at(event))),
      onpointerleave: () => this.alignment.point(null, null),
    };
    if (this.translations.length === 1) return el("p", { class: "line", ...pointerEvents }, ...spans);
    const choose = () => this.selectLine(line);
    const press = (event) => event.key === "Enter" && choose();
    if (here) return el("p", { class: "line here", "aria-current": "true", tabindex: 0, ...pointerEvents }, ...spans);
    return el("p", { class: "line", tabindex: 0, onclick: choose, onkeydown: press }, ...spans);
  }

  selectLine(line) {
    this.line = line;
    this.hypothesis = 0;
    this.draw();
    this.loadTree();
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
      const score = el("span", { class: "hint numbers" }, t("tr_score", { score: formatFixed(one.score, 3) }));
      const attributes = { type: "button", "aria-pressed": String(at === this.hypothesis), onclick: choose };
      return el("li", {}, el("button", attributes, el("span", {}, one.text), score));
    });
    this.parts.others.replaceChildren(el("h2", { t: "tr_others" }), el("ol", { class: "nbest" }, ...items));
    this.parts.others.hidden = hypotheses.length < 2;
  }

  /** Highlight a word of the translation that is pointed at elsewhere. */
  highlight(place) {
    const { answer } = this.parts;
    for (const word of answer.querySelectorAll(".at")) word.classList.remove("at");
    answer.children[this.line]?.querySelector(`[data-place="${place}"]`)?.classList.add("at");
  }
}
