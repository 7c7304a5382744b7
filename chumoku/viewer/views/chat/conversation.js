// The pane Chat: messages to and fro.
import { summary } from "./completion.js";
import { fits } from "./context_limit.js";
import { button, el, invite } from "../../core/dom.js";
import { cutStart } from "../../core/text.js";

const KEPT = 200; // messages over a reload

export class Talk {
  path = "/v1/chat/completions";

  constructor(context, hooks) {
    this.context = context;
    this.hooks = hooks;
    const { keep } = context;
    this.kept = { messages: keep("messages", "[]"), draft: keep("draft"), system: keep("system") };
    this.messages = readMessages(this.kept.messages.get());
    this.waiting = null; // the answer being written
    this.system = box("ch-system", "ch_system", "ch_system_hint", this.kept.system.get());
    this.draft = box("ch-draft", "ch_message", "ch_message_hint", this.kept.draft.get());
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
      this.kept.draft.set(this.draft.value);
      this.hooks.changed();
    });
    this.system.addEventListener("input", () => {
      this.kept.system.set(this.system.value);
      this.hooks.changed();
    });
    this.draft.addEventListener("keydown", (event) => {
      // While letters are being converted, Enter chooses among them and sends nothing.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.hooks.send();
    });
  }

  restart() {
    this.hooks.stop();
    this.messages = [];
    this.error.textContent = "";
    this.say(null);
    this.save();
    this.draw();
    this.hooks.changed();
    this.focus();
  }

  ready() {
    return this.draft.value.trim() !== "" || this.messages.at(-1)?.role === "user";
  }

  // Instructions, what was said, and what is about to be: as much from the end as fits.
  // `cut(more)` tells what was not sent, and `more` messages besides that the server left out.
  body(attempt) {
    const said = this.messages.map(({ role, content }) => ({ role, content }));
    if (!this.waiting && this.draft.value.trim()) said.push({ role: "user", content: this.draft.value });
    const letters = said.reduce((total, one) => total + one.content.length, 0);
    const { sent, short } = newest(said, fits(this.context.model(), letters, attempt));
    const left = said.length - sent.length;
    const { t } = this.context;
    const dropped = (count) => (count ? t(count === 1 ? "ch_dropped_one" : "ch_dropped", { count }) : "");
    const cut = (more) => (short ? t("ch_cut", { letters: sent[0].content.length.toLocaleString() }) : dropped(left + more));
    const system = this.system.value.trim() ? [{ role: "system", content: this.system.value }] : [];
    return { fields: { messages: [...system, ...sent] }, cut };
  }

  began(writing) {
    if (this.draft.value.trim()) this.messages.push({ role: "user", content: this.draft.value });
    this.draft.value = "";
    this.kept.draft.set("");
    this.error.textContent = "";
    this.waiting = writing;
    this.save();
    this.draw();
    this.busy(true);
  }

  grew() {
    const { scrollTop, scrollHeight, clientHeight } = this.list;
    if (scrollHeight - scrollTop - clientHeight < 80) this.list.scrollTop = scrollHeight; // unless the reader went up
  }

  ended(writing, error, stopped) {
    this.busy(false);
    if (this.waiting !== writing) return; // a new chat was begun meanwhile
    this.waiting = null;
    this.error.textContent = error?.message ?? "";
    const { text } = writing;
    if (text) this.messages.push({ role: "assistant", content: text, writing, speed: writing.speed(), stopped });
    this.save();
    this.draw();
    this.focus();
  }

  busy(now) {
    this.go.hidden = now;
    this.halt.hidden = !now;
  }

  save() {
    this.kept.messages.set(JSON.stringify(this.messages.slice(-KEPT).map(({ role, content }) => ({ role, content }))));
  }

  draw() {
    const { t, model } = this.context;
    const shown = this.messages.map((one, at) => this.bubble(one, at === this.messages.length - 1));
    if (this.waiting) shown.push(message("assistant", this.waiting.root, { "aria-busy": "true" }));
    if (!shown.length) shown.push(el("p", { class: "empty" }, t("ch_hello", { model: model().id })));
    this.list.replaceChildren(...shown);
    this.list.scrollTop = this.list.scrollHeight;
  }

  bubble(one, last) {
    const mine = one.role === "user";
    const inside = one.writing ? one.writing.root : el("div", { class: "written" }, one.content);
    const made = message(one.role, inside);
    if (mine && !(last && !this.waiting)) return made;
    const told = one.writing ? summary(this.context.t, one.writing, one.speed, one.stopped) : "";
    const again = last && !this.waiting ? button("ch_again", () => this.again(), { class: "quiet" }) : null;
    if (told || again) made.append(el("footer", { class: "hint numbers" }, el("span", {}, told), again));
    return made;
  }

  /** Take the last answer back and ask for another. */
  again() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.hooks.send();
  }

  /** Tell what of the text was not sent: a function, since the language may change. */
  say(cut) {
    this.saying = cut;
    this.cut.textContent = cut?.() ?? "";
  }

  reword() {
    this.say(this.saying);
    this.draw();
  }

  focus() {
    invite(this.draft);
  }
}

function box(id, label, hint, value) {
  return el("textarea", { id, rows: 2, "t-label": label, "t-placeholder": hint, value });
}

function message(role, inside, more = {}) {
  const who = el("h3", { t: role === "user" ? "ch_you" : "ch_model" });
  return el("article", { class: `message ${role}`, ...more }, who, inside);
}

/** The last messages that have so many letters together; the very last is cut where it alone has more. */
function newest(said, letters) {
  let from = said.length;
  let left = letters;
  while (from > 0 && said[from - 1].content.length <= left) left -= said[--from].content.length;
  if (from < said.length) return { sent: said.slice(from), short: false };
  const last = said.at(-1);
  return { sent: [{ ...last, content: cutStart(last.content, Math.max(1, letters)) }], short: true };
}

function readMessages(text) {
  try {
    const told = JSON.parse(text);
    return told.filter((one) => ["user", "assistant"].includes(one.role) && typeof one.content === "string");
  } catch {
    return [];
  }
}
