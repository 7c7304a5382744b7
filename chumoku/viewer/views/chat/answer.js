// One answer while it is written: pieces of a stream become text, and if asked for, how sure the model was of each.
import { el } from "../../core/dom.js";
import { fromChances } from "./next_token.js";

const UNSURE = -4; // a logarithm of a chance this low gets the strongest line

export class Writing {
  constructor({ sure, vocabulary, onPoint }) {
    Object.assign(this, { sure, vocabulary, onPoint, text: "", tokens: 0, left: 0, finish: null, began: 0, first: null });
    this.root = el("div", { class: "written" });
    this.plain = document.createTextNode("");
    this.root.append(this.plain);
  }

  /** One piece of a stream, of either form: chat or completion. */
  add(piece) {
    const choice = piece.choices?.[0];
    this.left = piece.dropped_messages ?? this.left;
    if (piece.usage) this.tokens = piece.usage.completion_tokens;
    if (!choice) return;
    const more = choice.delta?.content ?? choice.text ?? "";
    const chances = chancesOf(choice.logprobs);
    this.finish = choice.finish_reason ?? this.finish;
    if (!more) return;
    this.first ??= performance.now();
    this.text += more;
    if (!this.sure || !chances.length) this.plain.appendData(more);
    else this.mark(more, chances);
    if (!piece.usage) this.tokens += Math.max(1, chances.length);
  }

  mark(more, chances) {
    const least = Math.min(...chances.map((one) => one.own));
    const seen = fromChances(chances.at(-1).others, this.vocabulary);
    const point = () => this.onPoint(seen, more);
    const span = el("span", { class: "sure", onpointerenter: point, onpointerleave: () => this.onPoint(null) }, more);
    span.style.setProperty("--doubt", Math.min(1, Math.max(0, least / UNSURE)).toFixed(3));
    this.plain = document.createTextNode("");
    this.root.append(span, this.plain);
  }

  /** Tokens in a second, after the first. */
  speed() {
    const seconds = (performance.now() - (this.first ?? performance.now())) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }
}

/** The chances in an answer of either form: for each token its own, and those of the likeliest there. */
export function chancesOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    const others = (one) => one.top_logprobs.map((top) => [top.token, Number(top.logprob)]);
    return logprobs.content.map((one) => ({ own: Number(one.logprob), others: others(one) }));
  }
  const tops = logprobs.top_logprobs ?? [];
  const owns = logprobs.token_logprobs ?? [];
  return owns.map((own, at) => ({ own: Number(own), others: Object.entries(tops[at] ?? {}) }));
}
