// The pane Complete: a text, and the model's continuation.
import { maxChars } from "./context_limit.js";
import { button, el, focusWithoutKeyboard } from "../../core/dom.js";
import { cutStart } from "../../core/text.js";

export class Completion {
  path = "/v1/completions";

  constructor(context, hooks) {
    this.context = context;
    this.hooks = hooks;
    this.stored = context.storedValue("prompt");
    this.current = null; // the answer
    const attributes = { id: "ch-prompt", spellcheck: "false", "t-placeholder": "ch_prompt_hint" };
    this.prompt = el("textarea", { ...attributes, rows: 6, value: this.stored.get() });
    this.prompt.addEventListener("input", () => this.changed());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      hooks.send();
    });
    this.go = button("ch_go", () => hooks.send(), { class: "go", title: "Ctrl + Enter" });
    this.halt = button("ch_stop", () => hooks.stop(), { class: "halt", title: "Esc", hidden: true });
    this.take = button("ch_take", () => this.takeOver(), { hidden: true });
    this.summary = el("span", { class: "hint numbers" });
    this.cut = el("p", { class: "cut", role: "status" });
    this.error = el("p", { class: "error", role: "alert" });
    this.answer = el("div", { class: "answer-box", role: "region", "t-label": "ch_answer", "aria-live": "polite" });
    this.root = el(
      "section",
      { class: "card complete" },
      el("label", { for: "ch-prompt" }, el("h2", { t: "ch_prompt" })),
      this.prompt,
      this.cut,
      el("div", { class: "controls acts" }, this.go, this.halt, this.take, this.summary),
      this.error,
      this.answer,
    );
  }

  changed() {
    this.stored.set(this.prompt.value);
    this.hooks.changed();
  }

  ready() {
    return this.prompt.value !== "";
  }

  /** The fields of a request; each retry sends a shorter prompt, and `cut()` returns a message that says so. */
  requestBody(attempt) {
    const text = this.prompt.value;
    const prompt = cutStart(text, maxChars(this.context.model(), text.length, attempt));
    const short = prompt.length < text.length;
    const cut = () => (short ? this.context.t("ch_cut", { letters: prompt.length.toLocaleString() }) : "");
    return { fields: { prompt }, cut };
  }

  onStart(answer) {
    this.current = answer;
    this.error.textContent = this.summary.textContent = "";
    this.answer.replaceChildren(answer.root);
    this.answer.setAttribute("aria-busy", "true");
    this.setBusy(true);
  }

  onChunk() {
    this.answer.scrollTop = this.answer.scrollHeight;
  }

  onEnd(answer, error, stopped) {
    this.setBusy(false);
    this.answer.removeAttribute("aria-busy");
    this.error.textContent = error?.message ?? "";
    this.stopped = stopped;
    this.take.hidden = answer.text === "";
    this.speed = answer.speed();
    this.updateTexts();
  }

  setBusy(now) {
    this.go.hidden = now;
    this.halt.hidden = !now;
    this.take.hidden = true;
  }

  takeOver() {
    this.prompt.value += this.current.text;
    this.answer.replaceChildren();
    this.take.hidden = true;
    this.summary.textContent = "";
    this.changed();
    this.prompt.focus();
    this.prompt.scrollTop = this.prompt.scrollHeight;
  }

  /** Show which part of the text was not sent. `cut` is a function, since the language may change. */
  showCut(cut) {
    this.cutMessage = cut;
    this.cut.textContent = cut?.() ?? "";
  }

  updateTexts() {
    this.showCut(this.cutMessage);
    if (!this.current || this.go.hidden) return;
    this.summary.textContent = summarize(this.context.t, this.current, this.speed, this.stopped);
  }

  focus() {
    focusWithoutKeyboard(this.prompt);
  }
}

/** The speed of an answer, and why it ended. */
export function summarize(t, answer, speed, stopped) {
  const parts = [];
  if (speed) parts.push(t("ch_speed", { tokens: answer.tokens, speed: speed.toFixed(1) }));
  if (stopped) parts.push(t("ch_stopped"));
  else if (answer.finish === "length") parts.push(t("ch_length"));
  return parts.join(" · ");
}
