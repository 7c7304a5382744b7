// The picture of the next token: its likeliest candidates, what stays of them under the rules, and what is cut.
import { bars } from "../../core/bars.js";
import { el, percent, visible } from "../../core/dom.js";
import { shaped } from "../../core/sampling.js";

const SHOWN = 20;
const MARKED = 0.005; // a chance below this has no mark: it would only be a wall along the names

export class Picture {
  constructor(context, rules) {
    this.t = context.t;
    this.language = context.language;
    this.rules = rules;
    this.next = null; // what comes after the text
    this.past = null; // what might have stood at a token pointed at
    this.title = el("h2");
    this.kept = el("p", { class: "hint numbers" });
    this.body = el("div", { class: "chances" });
    this.note = el("p", { class: "hint small", t: "ch_tick" });
    this.root = el("section", { class: "picture", "aria-live": "off" }, this.title, this.kept, this.body, this.note);
  }

  /** candidates = { tokens: [{ text, logit }] (falling), rest, vocabulary }, or nothing. */
  show(candidates) {
    this.next = candidates;
    this.draw();
  }

  /** The same for a token already written; nothing: back to the next one. */
  point(candidates, word = "") {
    this.past = candidates ? { candidates, word } : null;
    this.draw();
  }

  draw() {
    const { t } = this;
    const seen = this.past?.candidates ?? this.next;
    this.title.textContent = this.past ? t("ch_at", { word: visible(this.past.word) }) : t("ch_next");
    this.note.hidden = !seen;
    if (!seen) {
      this.kept.textContent = t("ch_next_none");
      this.body.replaceChildren();
      return;
    }
    const logits = seen.tokens.map((one) => Number(one.logit));
    const known = { logits, rest: Number(seen.rest), vocabulary: seen.vocabulary };
    const now = shaped(known, this.rules());
    const own = shaped(known, { temperature: 1 });
    const number = (many) => many.toLocaleString(this.language());
    this.kept.textContent = t("ch_kept", { many: number(now.many), all: number(seen.vocabulary) });
    const rows = seen.tokens.slice(0, SHOWN).map((one, at) => ({
      name: visible(one.text),
      share: now.shares[at],
      told: now.kept[at] ? percent(now.shares[at]) : "–",
      strong: now.kept[at],
      faint: !now.kept[at],
    }));
    const later = now.shares.slice(SHOWN);
    const held = later.reduce((total, share, at) => total + (now.kept[SHOWN + at] ? share : 0), 0);
    const rest = held + (now.many > logits.length ? now.rest : 0);
    const some = rest > 0;
    const told = some ? percent(rest) : "–";
    rows.push({ name: t("ch_rest"), share: rest, told, strong: some, faint: !some, rest: true });
    const drawn = bars(rows);
    own.shares.slice(0, SHOWN).forEach((share, at) => {
      if (!(share >= MARKED)) return;
      const tick = el("i", { class: "tick" });
      tick.style.setProperty("left", `${100 * Math.min(1, share || 0)}%`);
      drawn.children[at].querySelector(".track").append(tick);
    });
    this.body.replaceChildren(drawn);
  }
}

/** What /v1/look/next tells, as the picture wants it. */
export function fromLook(told) {
  return { tokens: told.candidates, rest: told.rest, vocabulary: told.vocabulary };
}

/** The same from logarithms of chances, as answers carry them: what they leave of 1 is the rest. */
export function fromChances(pairs, vocabulary) {
  const tokens = pairs.map(([text, logit]) => ({ text, logit })).sort((a, b) => b.logit - a.logit);
  const left = 1 - tokens.reduce((total, one) => total + Math.exp(one.logit), 0);
  return { tokens, rest: left > 1e-7 ? Math.log(left) : -Infinity, vocabulary };
}
