// The view Look: one text, and every value that the model computes from its tokens to the prediction.
//
//   POST /v1/look          once per text: tokens, maps, entropy, words    → the head picker and the panels
//   POST /v1/look/block    for each position, layer and head              → the steps
//
// Generated tokens are sent along with every later request, so that all requests describe the same forward pass.
import { isAbort } from "../../core/api.js";
import { debounce, el } from "../../core/dom.js";
import { scrollToMiddle } from "../../core/overflow.js";
import { cutEnd } from "../../core/text.js";
import { HeadPicker } from "./head_picker.js";
import { layout, TABS } from "./layout.js";
import { LookPanels } from "./panels.js";
import { steps } from "./steps.js";
import { makeSpaceHint, TokenLines } from "./tokens.js";

export { strings } from "./strings.js";
export const styles = ["views/look/look.css"];
export const accepts = (model) => !model.parent; // an adapter can only generate text

const MAX_CHARS = 20000;
const FAST_LENS = 400_000; // up to this many layers × vocabulary, the lens is part of the first request

export function mount(root, context) {
  const view = new Look(context);
  root.append(view.parts.root);
  view.start();
  return { refresh: () => !view.look && view.load(), unmount: () => view.unmount() };
}

class Look {
  constructor(context) {
    this.context = context;
    const { storedValue, api, t } = context;
    this.stored = { text: storedValue("text"), tab: storedValue("tab", "steps"), new: storedValue("new", "8") };
    this.look = null; // the response to /v1/look
    this.request = null; // its request
    this.samePass = null; // the fields of later requests about the same forward pass
    this.block = null; // { response, selection } of the steps that are shown
    Object.assign(this, { part: "decoder", layer: 0, head: 0, place: 0, abort: null, blockAbort: null });
    this.later = debounce(() => this.loadBlock(), 60);
    const parts = (this.parts = layout(this.stored));
    this.picker = new HeadPicker(t, (layer, head) => this.select({ layer, head }));
    this.panels = new LookPanels(this, api, t);
    this.tab = TABS.includes(this.stored.tab.get()) ? this.stored.tab.get() : "steps";
    this.tokens = new TokenLines((change) => this.select(change));
    this.spaceHint = makeSpaceHint();
    parts.form.append(this.spaceHint.root);
    parts.pick.append(this.picker.root);
    parts.where.prepend(this.tokens.root);
  }

  /** The number of layers of each stack, and the number of heads. */
  depths() {
    const { kind, layers, encoder_layers: encoder, heads } = this.context.model();
    return { encoder: kind === "decoder" ? 0 : encoder || layers, decoder: kind === "encoder" ? 0 : layers, heads };
  }

  // ---- the whole text ----
  async load() {
    this.stop();
    const { parts, context } = this;
    const text = cutEnd(parts.text.value, MAX_CHARS);
    parts.cut.textContent = text.length < parts.text.value.length ? context.t("look_cut", { most: MAX_CHARS }) : "";
    parts.error.textContent = "";
    if (!text.trim()) return this.show(null);
    const { signal } = (this.abort = new AbortController());
    const model = context.model();
    const generates = model.kind !== "encoder";
    const request = { model: model.id, text, ...(generates && { new: Number(parts.fresh.value) }) };
    const lens = model.vocabulary * model.layers < FAST_LENS;
    parts.root.setAttribute("aria-busy", "true");
    try {
      const look = await context.api.post("/v1/look", { ...request, lens }, { signal });
      this.request = request;
      this.samePass = { model: model.id, text, ...(generates && { target: generatedIds(look) }) };
      this.show(look);
    } catch (error) {
      if (isAbort(error)) return undefined;
      parts.error.textContent = error.message;
    }
    parts.root.removeAttribute("aria-busy");
    return undefined;
  }

  show(look) {
    this.look = look;
    this.block = null;
    this.panels.reset();
    this.spaceHint.show(look);
    this.parts.below.hidden = look === null;
    this.parts.root.removeAttribute("aria-busy");
    if (!look) return;
    const { encoder, decoder } = this.depths();
    if (!(this.part === "decoder" ? decoder : encoder)) this.part = decoder ? "decoder" : "encoder";
    this.place = look.kind === "decoder" ? look.first - 1 : Math.min(1, this.rowTokens().length - 1);
    this.showNotices();
    this.select({});
    this.panels.ablation.show(look, this.depths(), { ...this.request }, this.samePass);
    this.panels.patching.show(look, this.depths(), { ...this.samePass });
    this.openTab();
  }

  showNotices() {
    const paragraphs = this.look.notices.map((pair) => el("p", { class: "cut" }, this.inLanguage(pair)));
    this.parts.notices.replaceChildren(...paragraphs);
  }

  /** The sentence of a notice in the current language. */
  inLanguage([english, japanese]) {
    return this.context.language() === "ja" ? japanese : english;
  }

  // ---- one position, one layer, one head ----
  rowTokens() {
    return this.part === "encoder" && this.look.source.length ? this.look.source : this.look.tokens;
  }

  select(change) {
    Object.assign(this, change);
    const depths = this.depths();
    this.layer = Math.min(this.layer, depths[this.part] - 1);
    this.head = Math.min(this.head, depths.heads - 1);
    this.place = Math.max(0, Math.min(this.place, this.rowTokens().length - 1));
    this.drawSelection();
    if (this.tab === "steps") this.later();
  }

  drawSelection() {
    const { part, layer, head, place } = this;
    const depths = this.depths();
    this.picker.show({ layers: depths[part], heads: depths.heads, entropy: this.look.entropy[part] ?? [[]] });
    this.picker.choose(layer, head);
    this.tokens.show(this.look, { part, place });
  }

  async loadBlock() {
    this.blockAbort?.abort();
    const { signal } = (this.blockAbort = new AbortController());
    const { parts, part, layer, head, place } = this;
    const selection = { part, layer, head, place };
    parts.panels.steps.setAttribute("aria-busy", "true");
    try {
      const response = await this.context.api.post("/v1/look/block", { ...this.samePass, ...selection }, { signal });
      parts.blockError.textContent = "";
      this.block = { response, selection };
      this.drawSteps();
    } catch (error) {
      if (isAbort(error)) return;
      parts.blockError.textContent = error.message;
    }
    parts.panels.steps.removeAttribute("aria-busy");
  }

  drawSteps() {
    const { response, selection } = this.block;
    const cards = steps(response, this.look, selection, this.context.t);
    this.parts.steps.replaceChildren(...cards);
    const links = cards.map((card) => {
      const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const onclick = () => card.scrollIntoView({ behavior: reduced ? "auto" : "smooth", block: "start" });
      return el("button", { type: "button", class: "quiet", t: card.dataset.title, onclick });
    });
    this.parts.contents.replaceChildren(...links);
  }

  // ---- tabs ----
  openTab() {
    const { parts, tab } = this;
    if (tab !== "steps") this.stopSteps();
    this.panels.stopExcept(tab);
    for (const name of TABS) {
      parts.tabs[name].setAttribute("aria-selected", String(name === tab));
      parts.tabs[name].tabIndex = name === tab ? 0 : -1;
      parts.panels[name].hidden = name !== tab;
    }
    scrollToMiddle(parts.tablist, parts.tabs[tab]);
    parts.where.hidden = tab !== "steps";
    if (!this.look) return;
    if (tab === "steps") this.later();
    else this.panels.open(tab);
  }

  redraw() {
    if (!this.look) return;
    this.showNotices();
    this.drawSelection();
    if (this.block) this.drawSteps();
    this.panels.redraw();
  }

  stopSteps() {
    this.later.stop();
    this.blockAbort?.abort();
  }

  stop() {
    this.abort?.abort();
    this.stopSteps();
    this.panels.stopExcept(null);
  }

  unmount() {
    this.stop();
    this.panels.unmount();
  }

  // ---- events ----
  start() {
    const { parts, context, stored } = this;
    this.listenToText();
    this.listenToTabs();
    parts.fresh.addEventListener("change", () => {
      stored.new.set(parts.fresh.value);
      this.load();
    });
    const showFields = () => (parts.freshLabel.hidden = context.model().kind === "encoder");
    context.onModel(() => {
      showFields();
      this.load();
    });
    context.onLanguage(() => this.redraw());
    context.theme.onChange(() => this.redraw());
    showFields();
    const { kind, examples } = context.model();
    if (!parts.text.value) parts.text.value = examples?.[0] ?? context.t("look_example_" + kind);
    this.openTab();
    this.load();
  }

  listenToText() {
    const { parts } = this;
    parts.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.load();
    });
    parts.text.addEventListener("input", () => {
      this.stored.text.set(parts.text.value);
      this.abort?.abort(); // a request about the previous text
      parts.root.removeAttribute("aria-busy");
    });
    parts.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.load();
    });
  }

  listenToTabs() {
    const { parts } = this;
    for (const name of TABS)
      parts.tabs[name].addEventListener("click", () => {
        this.tab = name;
        this.stored.tab.set(name);
        this.openTab();
      });
    parts.tablist.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      const next = parts.tabs[TABS[(TABS.indexOf(this.tab) + move + TABS.length) % TABS.length]];
      next.click();
      next.focus();
    });
  }
}

function generatedIds({ tokens, first, then }) {
  return [...tokens.slice(first).map(([id]) => id), ...(then ? [then.id] : [])];
}
