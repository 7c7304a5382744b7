// The pane Chat: a conversation.
import { summarize } from "./completion.js";
import { maxChars } from "./context_limit.js";
import { button, el, focusWithoutKeyboard } from "../../core/dom.js";
import { cutStart } from "../../core/text.js";

const MAX_STORED = 200; // messages that survive a reload

export class Conversation {
  path = "/v1/chat/completions";

  constructor(context, hooks) {
    this.context = context;
    this.hooks = hooks;
    const { storedValue } = context;
    this.stored = { messages: storedValue("messages", "[]"), draft: storedValue("draft"), system: storedValue("system") };
    this.messages = readMessages(this.stored.messages.get());
    this.pending = null; // the answer that is being generated
    this.system = box("ch-system", "ch_system", "ch_system_hint", this.stored.system.get());
    this.draft = box("ch-draft", "ch_message", "ch_message_hint", this.stored.draft.get());
    this.go = button("ch_send", () => hooks.send(), { class: "go" });
    this.halt = button("ch_stop", () => hooks.stop(), { class: "halt", title: "Esc", hidden: true });
    this.fresh = button("ch_new", () => this.restart(), { class: "quiet fresh" });
    this.list = el("div", { class: "messages", role: "log", "t-label": "ch_chat", tabindex: 0 });
    this.cut = el("p", { class: "cut", role: "status" });
    this.error = el("p", { class: "error", role: "alert" });
    const instructions = el("details", { class: "system" }, el("summary", { t: "ch_system" }), this.system);
    const composer = el("div", { class: "composer" }, this.draft, el("div", { class: "send" }, this.go, this.halt));
    this.root = el("section", { class: "card talk" }, instructions, this.list, this.cut, this.error, composer);
    this.listen();
    this.draw();
  }

  listen() {
    this.draft.addEventListener("input", () => {
      this.stored.draft.set(this.draft.value);
      this.hooks.changed();
    });
    this.system.addEventListener("input", () => {
      this.stored.system.set(this.system.value);
      this.hooks.changed();
    });
    this.draft.addEventListener("keydown", (event) => {
      // During input of Japanese, Enter confirms the conversion and must not send.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.hooks.send();
    });
  }

  restart() {
    this.hooks.stop();
    this.messages = [];
    this.error.textContent = "";
    this.showCut(null);
    this.save();
    this.draw();
    this.hooks.changed();
    this.focus();
  }

  ready() {
    return this.draft.value.trim() !== "" || this.messages.at(-1)?.role === "user";
  }

  /** The fields of a request: the system prompt, and the newest messages that fit. `cut(more)` is a message about those
      that were left out, including `more` by the server. */
  requestBody(attempt) {
    const messages = this.messages.map(({ role, content }) => ({ role, content }));
    if (!this.pending && this.draft.value.trim()) messages.push({ role: "user", content: this.draft.value });
    const length = messages.reduce((total, one) => total + one.content.length, 0);
    const { sent, short } = newest(messages, maxChars(this.context.model(), length, attempt));
    const left = messages.length - sent.length;
    const { t } = this.context;
    const dropped = (count) => (count ? t(count === 1 ? "ch_dropped_one" : "ch_dropped", { count }) : "");
    const cut = (more) => (short ? t("ch_cut", { letters: sent[0].content.length.toLocaleString() }) : dropped(left + more));
    const system = this.system.value.trim() ? [{ role: "system", content: this.system.value }] : [];
    return { fields: { messages: [...system, ...sent] }, cut };
  }

  onStart(answer) {
    if (this.draft.value.trim()) this.messages.push({ role: "user", content: this.draft.value });
    this.draft.value = "";
    this.stored.draft.set("");
    this.error.textContent = "";
    this.pending = answer;
    this.save();
    this.draw();
    this.setBusy(true);
  }

  onChunk() {
    const { scrollTop, scrollHeight, clientHeight } = this.list;
    if (scrollHeight - scrollTop - clientHeight < 80) this.list.scrollTop = scrollHeight; // unless the user scrolled up
  }

  onEnd(answer, error, stopped) {
    this.setBusy(false);
    if (this.pending !== answer) return; // a new chat was started meanwhile
    this.pending = null;
    this.error.textContent = error?.message ?? "";
    const { text } = answer;
    if (text) this.messages.push({ role: "assistant", content: text, answer, speed: answer.speed(), stopped });
    this.save();
    this.draw();
    this.focus();
  }

  setBusy(now) {
    this.go.hidden = now;
    this.halt.hidden = !now;
  }

  save() {
    this.stored.messages.set(JSON.stringify(this.messages.slice(-MAX_STORED).map(({ role, content }) => ({ role, content }))));
  }

  draw() {
    const { t, model } = this.context;
    const shown = this.messages.map((one, at) => this.bubble(one, at === this.messages.length - 1));
    if (this.pending) shown.push(message("assistant", this.pending.root, { "aria-busy": "true" }));
    if (!shown.length) shown.push(el("p", { class: "empty" }, t("ch_hello", { model: model().id })));
    this.list.replaceChildren(...shown);
    this.list.scrollTop = this.list.scrollHeight;
  }

  bubble(one, last) {
    const mine = one.role === "user";
    const content = one.answer ? one.answer.root : el("div", { class: "written" }, one.content);
    const article = message(one.role, content);
    if (mine && !(last && !this.pending)) return article;
    const note = one.answer ? summarize(this.context.t, one.answer, one.speed, one.stopped) : "";
    const again = last && !this.pending ? button("ch_again", () => this.regenerate(), { class: "quiet" }) : null;
    if (note || again) article.append(el("footer", { class: "hint numbers" }, el("span", {}, note), again));
    return article;
  }

  /** Remove the last answer and generate another. */
  regenerate() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.hooks.send();
  }

  /** Show what was not sent. `cut` is a function, since the language may change. */
  showCut(cut) {
    this.cutMessage = cut;
    this.cut.textContent = cut?.() ?? "";
  }

  updateTexts() {
    this.showCut(this.cutMessage);
    this.draw();
  }

  focus() {
    focusWithoutKeyboard(this.draft);
  }
}

function box(id, label, hint, value) {
  return el("textarea", { id, rows: 2, "t-label": label, "t-placeholder": hint, value });
}

function message(role, content, more = {}) {
  const who = el("h3", { t: role === "user" ? "ch_you" : "ch_model" });
  return el("article", { class: `message ${role}`, ...more }, who, content);
}

/** The newest messages with at most `chars` characters together; the last message is cut if it alone has more. */
function newest(messages, chars) {
  let from = messages.length;
  let left = chars;
  while (from > 0 && messages[from - 1].content.length <= left) left -= messages[--from].content.length;
  if (from < messages.length) return { sent: messages.slice(from), short: false };
  const last = messages.at(-1);
  return { sent: [{ ...last, content: cutStart(last.content, Math.max(1, chars)) }], short: true };
}

function readMessages(text) {
  try {
    return JSON.parse(text).filter((one) => ["user", "assistant"].includes(one.role) && typeof one.content === "string");
  } catch {
    return [];
  }
}
