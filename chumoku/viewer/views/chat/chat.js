// The view Chat: talk with a model, or let it go on with a text, and see how each next token is chosen.
//
//   a pane (talk, complete)  →  body(attempt)  →  stream of pieces  →  Writing
//   what is in the pane      →  the chances of the next token       →  Picture, redrawn as the sliders move
import { dropped } from "../../core/api.js";
import { Complete } from "./completion.js";
import { fromChances, fromLook, Picture } from "./next_token.js";
import { Sampling } from "./sampling_controls.js";
import { Talk } from "./conversation.js";
import { chancesOf, Writing } from "./answer.js";
import { el, rested } from "../../core/dom.js";

export { strings } from "./strings.js";
export const styles = ["views/chat/chat.css"];
export const accepts = (model) => model.kind === "decoder";
export const prefers = (model) => model.chat;

const WAIT = 500; // ms without a key before the next token is asked for
const TOPS = 20;
const CANDIDATES = 200;
const TOO_LONG = "context_length_exceeded";
const ATTEMPTS = 14; // each sends less; the last a hundredth

export function mount(root, context) {
  const chat = new Chat(context);
  root.append(chat.root);
  chat.begin();
  return { unmount: () => chat.unmount(), refresh: () => chat.look() };
}

class Chat {
  constructor(context) {
    this.context = context;
    this.abort = null; // of the answer being written
    this.lookAbort = null;
    this.keptMode = context.keep("mode", "chat");
    this.later = rested(() => this.look(), WAIT);
    const hooks = { send: () => this.send(), stop: () => this.stop(), changed: () => this.later() };
    this.panes = { chat: new Talk(context, hooks), complete: new Complete(context, hooks) };
    this.sampling = new Sampling(context, () => this.picture?.draw());
    this.picture = new Picture(context, () => this.sampling.rules());
    this.keptSure = context.keep("sure", "");
    this.sure = el("input", { type: "checkbox", onchange: () => this.keptSure.set(this.sure.checked ? "yes" : "") });
    this.sure.checked = this.keptSure.get() === "yes";
    this.modes = ["chat", "complete"].map((mode) =>
      el("button", { type: "button", t: "ch_" + mode, "data-mode": mode, onclick: () => this.turn(mode, true) }),
    );
    this.plain = el("span", { class: "hint", t: "ch_plain" });
    this.main = el("div", { class: "talking" });
    const side = el(
      "aside",
      { class: "card side", "t-label": "ch_sampling" },
      el("h2", { t: "ch_sampling" }),
      this.sampling.root,
      el("label", { class: "sure-box" }, this.sure, el("span", { t: "ch_sure" })),
      this.picture.root,
    );
    const modes = el("div", { role: "group", "t-label": "ch_mode", class: "segments" }, ...this.modes);
    const head = el("div", { class: "controls modes" }, modes, this.plain, this.panes.chat.fresh);
    this.root = el("div", { class: "chat" }, el("div", { class: "left" }, head, this.main), side);
    this.onKey = (event) => event.key === "Escape" && this.abort && this.stop();
  }

  begin() {
    document.addEventListener("keydown", this.onKey);
    this.context.onModel(() => this.modelChanged());
    this.context.onLanguage(() => {
      this.sampling.tell();
      this.picture.draw();
      for (const pane of Object.values(this.panes)) pane.reword();
    });
    this.modelChanged();
  }

  modelChanged() {
    this.stop();
    const chats = Boolean(this.context.model().chat);
    this.modes[0].disabled = !chats;
    this.plain.hidden = chats;
    this.turn(chats ? this.keptMode.get() : "complete", false);
  }

  turn(mode, chosen) {
    this.stop();
    if (chosen) this.keptMode.set(mode);
    this.mode = mode === "complete" ? "complete" : "chat";
    for (const button of this.modes) button.setAttribute("aria-pressed", String(button.dataset.mode === this.mode));
    this.panes.chat.fresh.hidden = this.mode !== "chat";
    this.pane = this.panes[this.mode];
    this.main.replaceChildren(this.pane.root);
    this.pane.reword();
    this.pane.focus();
    this.picture.show(null);
    this.later.now();
  }

  // ---- the answer ----
  async send() {
    if (this.abort || !this.pane.ready()) return;
    const mine = (this.abort = new AbortController());
    const pane = this.pane;
    this.later.stop();
    this.lookAbort?.abort();
    const onPoint = (...seen) => this.picture.point(...seen);
    const writing = new Writing({ sure: this.sure.checked, vocabulary: this.context.model().vocabulary, onPoint });
    pane.began(writing);
    let error = null;
    try {
      await this.written(pane, writing, mine.signal);
    } catch (wrong) {
      error = wrong;
    }
    if (this.abort === mine) this.abort = null;
    pane.ended(writing, dropped(error) ? null : error, dropped(error));
    if (this.abort === null) this.later.now();
  }

  /** Ask, and where the model cannot read so much, ask again with less. */
  async written(pane, writing, signal) {
    for (let attempt = 0; ; attempt++) {
      try {
        const { fields, cut } = pane.body(attempt);
        pane.say(() => cut(writing.left));
        const asked = { ...this.sampling.request(), ...this.chances(), ...fields, model: this.context.model().id };
        const body = { ...asked, stream_options: { include_usage: true } };
        for await (const piece of this.context.api.stream(pane.path, body, { signal })) {
          writing.add(piece);
          if (piece.dropped_messages) pane.reword();
          pane.grew();
        }
        return;
      } catch (error) {
        if (error.code !== TOO_LONG || attempt === ATTEMPTS) throw error;
      }
    }
  }

  chances() {
    if (!this.sure.checked) return {};
    return this.mode === "chat" ? { logprobs: true, top_logprobs: TOPS } : { logprobs: TOPS };
  }

  stop() {
    this.abort?.abort();
  }

  // ---- the next token ----
  async look() {
    this.lookAbort?.abort();
    if (this.abort) return;
    if (!this.pane.ready()) return this.picture.show(null);
    const mine = (this.lookAbort = new AbortController());
    try {
      const seen = await this.seen(mine.signal);
      if (!mine.signal.aborted) this.picture.show(seen);
    } catch (error) {
      if (!dropped(error)) this.picture.show(null); // sending will say what is wrong, beside the text
    }
  }

  async seen(signal) {
    const model = this.context.model();
    for (let attempt = 0; ; attempt++) {
      const { fields } = this.pane.body(attempt);
      try {
        if (this.mode === "complete") {
          const asked = { model: model.id, text: fields.prompt, count: Math.min(CANDIDATES, model.vocabulary) };
          return fromLook(await this.context.api.post("/v1/look/next", asked, { signal }));
        }
        const asked = { ...fields, model: model.id, max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: TOPS };
        const told = await this.context.api.post(this.pane.path, asked, { signal });
        const [first] = chancesOf(told.choices[0].logprobs);
        return first ? fromChances(first.others, model.vocabulary) : null;
      } catch (error) {
        if (error.code !== TOO_LONG || attempt === ATTEMPTS) throw error;
      }
    }
  }

  unmount() {
    document.removeEventListener("keydown", this.onKey);
    this.later.stop();
    this.stop();
    this.lookAbort?.abort();
  }
}
