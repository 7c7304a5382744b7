// The view Chat: chat with a model, or let it complete a text, and see how the next token is sampled.
//
//   a pane (Conversation, Completion)  →  requestBody(attempt)  →  stream of chunks  →  Answer
//   the text in the pane               →  probabilities of the next token            →  NextToken
import { isAbort } from "../../core/api.js";
import { Completion } from "./completion.js";
import { fromLogprobs, fromLook, NextToken } from "./next_token.js";
import { SamplingControls } from "./sampling_controls.js";
import { Conversation } from "./conversation.js";
import { Answer, readLogprobs } from "./answer.js";
import { debounce, el } from "../../core/dom.js";

export { strings } from "./strings.js";
export const styles = ["views/chat/chat.css"];
export const accepts = (model) => model.kind === "decoder";
export const prefers = (model) => model.chat;

const WAIT = 500; // ms after the last keystroke before the next token is requested
const TOP_LOGPROBS = 20;
const CANDIDATES = 200;
const TOO_LONG = "context_length_exceeded";
const ATTEMPTS = 14; // each sends less text; the last one sends a hundredth

export function mount(root, context) {
  const chat = new Chat(context);
  root.append(chat.root);
  chat.start();
  return { unmount: () => chat.unmount(), refresh: () => chat.loadNextToken() };
}

class Chat {
  constructor(context) {
    this.context = context;
    this.abort = null; // of the answer that is being generated
    this.nextAbort = null;
    this.storedMode = context.storedValue("mode", "chat");
    this.later = debounce(() => this.loadNextToken(), WAIT);
    const hooks = { send: () => this.send(), stop: () => this.stop(), changed: () => this.later() };
    this.panes = { chat: new Conversation(context, hooks), complete: new Completion(context, hooks) };
    this.sampling = new SamplingControls(context, () => this.nextToken?.draw());
    this.nextToken = new NextToken(context, () => this.sampling.rules());
    this.storedShow = context.storedValue("sure", "");
    this.showProbabilities = el("input", { type: "checkbox", onchange: () => this.storedShow.set(this.showProbabilities.checked ? "yes" : "") });
    this.showProbabilities.checked = this.storedShow.get() === "yes";
    this.modes = ["chat", "complete"].map((mode) =>
      el("button", { type: "button", t: "ch_" + mode, "data-mode": mode, onclick: () => this.setMode(mode, true) }),
    );
    this.noChat = el("span", { class: "hint" });
    this.main = el("div", { class: "talking" });
    const side = el(
      "aside",
      { class: "card side", "t-label": "ch_sampling" },
      el("h2", { t: "ch_sampling" }),
      this.sampling.root,
      el("label", { class: "sure-box" }, this.showProbabilities, el("span", { t: "ch_sure" })),
      this.nextToken.root,
    );
    const modes = el("div", { role: "group", "t-label": "ch_mode", class: "segments" }, ...this.modes);
    const head = el("div", { class: "controls modes" }, modes, this.noChat, this.panes.chat.fresh);
    this.root = el("div", { class: "chat" }, el("div", { class: "left" }, head, this.main), side);
    this.onKey = (event) => event.key === "Escape" && this.abort && this.stop();
  }

  start() {
    document.addEventListener("keydown", this.onKey);
    this.context.onModel(() => this.modelChanged());
    this.context.onLanguage(() => {
      this.sampling.updateLabels();
      this.updateNoChat();
      this.nextToken.draw();
      for (const pane of Object.values(this.panes)) pane.updateTexts();
    });
    this.modelChanged();
  }

  modelChanged() {
    this.stop();
    this.sampling.setModel(this.context.model());
    const chats = Boolean(this.context.model().chat);
    this.modes[0].disabled = !chats;
    this.noChat.hidden = chats;
    this.updateNoChat();
    this.setMode(chats ? this.storedMode.get() : "complete", false);
  }

  /** Why there is no chat; a page with its model inside also has a reason. */
  updateNoChat() {
    const { chat_reason: reason } = this.context.model();
    this.noChat.textContent = this.context.t(reason ? "ch_no_pattern" : "ch_plain", { reason });
  }

  setMode(mode, save) {
    this.stop();
    if (save) this.storedMode.set(mode);
    this.mode = mode === "complete" ? "complete" : "chat";
    for (const button of this.modes) button.setAttribute("aria-pressed", String(button.dataset.mode === this.mode));
    this.panes.chat.fresh.hidden = this.mode !== "chat";
    this.pane = this.panes[this.mode];
    this.main.replaceChildren(this.pane.root);
    this.pane.updateTexts();
    this.pane.focus();
    this.nextToken.show(null);
    this.later.now();
  }

  // ---- the answer ----
  async send() {
    if (this.abort || !this.pane.ready()) return;
    const controller = (this.abort = new AbortController());
    const pane = this.pane;
    this.later.stop();
    this.nextAbort?.abort();
    const onPoint = (...token) => this.nextToken.point(...token);
    const { vocabulary } = this.context.model();
    const answer = new Answer({ showProbabilities: this.showProbabilities.checked, vocabulary, onPoint });
    pane.onStart(answer);
    let error = null;
    try {
      await this.generate(pane, answer, controller.signal);
    } catch (caught) {
      error = caught;
    }
    if (this.abort === controller) this.abort = null;
    pane.onEnd(answer, isAbort(error) ? null : error, isAbort(error));
    if (this.abort === null) this.later.now();
  }

  /** Stream an answer; if the text is too long for the model, try again with less of it. */
  async generate(pane, answer, signal) {
    for (let attempt = 0; ; attempt++) {
      try {
        const { fields, cut } = pane.requestBody(attempt);
        pane.showCut(() => cut(answer.droppedMessages));
        const options = { ...this.sampling.requestFields(), ...this.logprobFields() };
        const body = { ...options, ...fields, model: this.context.model().id, stream_options: { include_usage: true } };
        for await (const chunk of this.context.api.stream(pane.path, body, { signal })) {
          answer.add(chunk);
          if (chunk.dropped_messages) pane.updateTexts();
          pane.onChunk();
        }
        return;
      } catch (error) {
        if (error.code !== TOO_LONG || attempt === ATTEMPTS) throw error;
      }
    }
  }

  logprobFields() {
    if (!this.showProbabilities.checked) return {};
    return this.mode === "chat" ? { logprobs: true, top_logprobs: TOP_LOGPROBS } : { logprobs: TOP_LOGPROBS };
  }

  stop() {
    this.abort?.abort();
  }

  // ---- the next token ----
  async loadNextToken() {
    this.nextAbort?.abort();
    if (this.abort) return;
    if (!this.pane.ready()) return this.nextToken.show(null);
    const { signal } = (this.nextAbort = new AbortController());
    try {
      const candidates = await this.requestCandidates(signal);
      if (!signal.aborted) this.nextToken.show(candidates);
    } catch (error) {
      if (!isAbort(error)) this.nextToken.show(null); // sending the text will show the error
    }
  }

  async requestCandidates(signal) {
    const model = this.context.model();
    for (let attempt = 0; ; attempt++) {
      const { fields } = this.pane.requestBody(attempt);
      try {
        if (this.mode === "complete") {
          const body = { model: model.id, text: fields.prompt, count: Math.min(CANDIDATES, model.vocabulary) };
          return fromLook(await this.context.api.post("/v1/look/next", body, { signal }));
        }
        const body = { ...fields, model: model.id, max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: TOP_LOGPROBS };
        const response = await this.context.api.post(this.pane.path, body, { signal });
        const [first] = readLogprobs(response.choices[0].logprobs);
        return first ? fromLogprobs(first.others, model.vocabulary) : null;
      } catch (error) {
        if (error.code !== TOO_LONG || attempt === ATTEMPTS) throw error;
      }
    }
  }

  unmount() {
    document.removeEventListener("keydown", this.onKey);
    this.later.stop();
    this.stop();
    this.nextAbort?.abort();
  }
}
