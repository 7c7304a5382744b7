// The pane Complete: a text, and how the model goes on with it.
import { fits } from "./context_limit.js";
import { button, el, invite } from "../../core/dom.js";
import { cutStart } from "../../core/text.js";

export class Complete {
  path = "/v1/completions";

  constructor(context, hooks) {
    this.context = context;
    this.hooks = hooks;
    this.kept = context.keep("prompt");
    this.writing = null;
    const named = { id: "ch-prompt", spellcheck: "false", "t-placeholder": "ch_prompt_hint" };
    this.prompt = el("textarea", { ...named, rows: 6, value: this.kept.get() });
    this.prompt.addEventListener("input", () => this.changed());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      hooks.send();
    });
    this.go = button("ch_go", () => hooks.send(), { class: "go", title: "Ctrl + Enter" });
    this.halt = button("ch_stop", () => hooks.stop(), { class: "halt", title: "Esc", hidden: true });
    this.take = button("ch_take", () => this.taken(), { hidden: true });
    this.told = el("span", { class: "hint numbers" });
    this.cut = el("p", { class: "cut", role: "status" });
    this.error = el("p", { class: "error", role: "alert" });
    this.answer = el("div", { class: "answer-box", role: "region", "t-label": "ch_answer", "aria-live": "polite" });
    this.root = el(
      "section",
      { class: "card complete" },
      el("label", { for: "ch-prompt" }, el("h2", { t: "ch_prompt" })),
      this.prompt,
      this.cut,
      el("div", { class: "controls acts" }, this.go, this.halt, this.take, this.told),
      this.error,
      this.answer,
    );
  }

  changed() {
    this.kept.set(this.prompt.value);
    this.hooks.changed();
  }

  ready() {
    return this.prompt.value !== "";
  }

  /** What is asked, and at later attempts with less of it; `cut()` is a sentence about that. */
  body(attempt) {
    const whole = this.prompt.value;
    const prompt = cutStart(whole, fits(this.context.model(), whole.length, attempt));
    const short = prompt.length < whole.length;
    const cut = () => (short ? this.context.t("ch_cut", { letters: prompt.length.toLocaleString() }) : "");
    return { fields: { prompt }, cut };
  }

  began(writing) {
    this.writing = writing;
    this.error.textContent = this.told.textContent = "";
    this.answer.replaceChildren(writing.root);
    this.answer.setAttribute("aria-busy", "true");
    this.busy(true);
  }

  grew() {
    this.answer.scrollTop = this.answer.scrollHeight;
  }

  ended(writing, error, stopped) {
    this.busy(false);
    this.answer.removeAttribute("aria-busy");
    this.error.textContent = error?.message ?? "";
    this.stopped = stopped;
    this.take.hidden = writing.text === "";
    this.speed = writing.speed();
    this.reword();
  }

  busy(now) {
    this.go.hidden = now;
    this.halt.hidden = !now;
    this.take.hidden = true;
  }

  taken() {
    this.prompt.value += this.writing.text;
    this.answer.replaceChildren();
    this.take.hidden = true;
    this.told.textContent = "";
    this.changed();
    this.prompt.focus();
    this.prompt.scrollTop = this.prompt.scrollHeight;
  }

  say(cut) {
    this.saying = cut;
    this.cut.textContent = cut?.() ?? "";
  }

  reword() {
    this.say(this.saying);
    if (!this.writing || this.go.hidden) return;
    this.told.textContent = summary(this.context.t, this.writing, this.speed, this.stopped);
  }

  focus() {
    invite(this.prompt);
  }
}

/** How an answer ended, in a few words. */
export function summary(t, writing, speed, stopped) {
  const parts = [];
  if (speed) parts.push(t("ch_speed", { tokens: writing.tokens, speed: speed.toFixed(1) }));
  if (stopped) parts.push(t("ch_stopped"));
  else if (writing.finish === "length") parts.push(t("ch_length"));
  return parts.join(" · ");
}
