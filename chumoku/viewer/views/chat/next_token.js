// The most probable next tokens: their probabilities after temperature and filters, and which ones are dropped.
import { bars } from "../../core/bars.js";
import { el, percent, showWhitespace } from "../../core/dom.js";
import { applySampling } from "../../core/sampling.js";

const SHOWN = 20;
const MIN_MARK = 0.005; // smaller probabilities have no mark, because it would touch the names

export class NextToken {
  constructor(context, rules) {
    this.t = context.t;
    this.language = context.language;
    this.rules = rules;
    this.next = null; // candidates after the text
    this.past = null; // candidates in place of a generated token under the pointer
    this.title = el("h2");
    this.count = el("p", { class: "hint numbers" });
    this.body = el("div", { class: "chances" });
    this.note = el("p", { class: "hint small", t: "ch_tick" });
    this.root = el("section", { class: "picture", "aria-live": "off" }, this.title, this.count, this.body, this.note);
  }

  /** candidates = { tokens: [{ text, logit }] (descending), rest, vocabulary }, or null. */
  show(candidates) {
    this.next = candidates;
    this.draw();
  }

  /** Show the candidates in place of a generated token; null: show the next token again. */
  point(candidates, word = "") {
    this.past = candidates ? { candidates, word } : null;
    this.draw();
  }

  draw() {
    const { t } = this;
    const candidates = this.past?.candidates ?? this.next;
    this.title.textContent = this.past ? t("ch_at", { word: showWhitespace(this.past.word) }) : t("ch_next");
    this.note.hidden = !candidates;
    if (!candidates) {
      this.count.textContent = t("ch_next_none");
      this.body.replaceChildren();
      return;
    }
    const logits = candidates.tokens.map((one) => Number(one.logit));
    const known = { logits, rest: Number(candidates.rest), vocabulary: candidates.vocabulary };
    const now = applySampling(known, this.rules());
    const unchanged = applySampling(known, { temperature: 1 });
    const number = (count) => count.toLocaleString(this.language());
    this.count.textContent = t("ch_kept", { many: number(now.count), all: number(candidates.vocabulary) });
    const rows = candidates.tokens.slice(0, SHOWN).map((one, at) => ({
      name: showWhitespace(one.text),
      share: now.shares[at],
      label: now.kept[at] ? percent(now.shares[at]) : "–",
      strong: now.kept[at],
      faint: !now.kept[at],
    }));
    const hidden = now.shares.slice(SHOWN);
    const hiddenShare = hidden.reduce((total, share, at) => total + (now.kept[SHOWN + at] ? share : 0), 0);
    const rest = hiddenShare + (now.count > logits.length ? now.rest : 0);
    const possible = rest > 0;
    const label = possible ? percent(rest) : "–";
    rows.push({ name: t("ch_rest"), share: rest, label, strong: possible, faint: !possible, rest: true });
    const chart = bars(rows);
    unchanged.shares.slice(0, SHOWN).forEach((share, at) => {
      if (!(share >= MIN_MARK)) return;
      const tick = el("i", { class: "tick" });
      tick.style.setProperty("left", `${100 * Math.min(1, share || 0)}%`);
      chart.children[at].querySelector(".track").append(tick);
    });
    this.body.replaceChildren(chart);
  }
}

/** Candidates from the response of /v1/look/next. */
export function fromLook({ candidates, rest, vocabulary }) {
  return { tokens: candidates, rest, vocabulary };
}

/** Candidates from [text, logprob] pairs; the rest is what is missing to a sum of 1. */
export function fromLogprobs(pairs, vocabulary) {
  const tokens = pairs.map(([text, logit]) => ({ text, logit })).sort((a, b) => b.logit - a.logit);
  const missing = 1 - tokens.reduce((total, one) => total + Math.exp(one.logit), 0);
  return { tokens, rest: missing > 1e-7 ? Math.log(missing) : -Infinity, vocabulary };
}
