// One generated answer: chunks of a stream become text, optionally with the probability of each token.
import { el } from "../../core/dom.js";
import { fromLogprobs } from "./next_token.js";

const LOWEST_LOGPROB = -4; // from here down, the underline has full strength

export class Answer {
  constructor({ showProbabilities, vocabulary, onPoint }) {
    Object.assign(this, { showProbabilities, vocabulary, onPoint, text: "", tokens: 0, droppedMessages: 0 });
    Object.assign(this, { finish: null, firstTime: null });
    this.root = el("div", { class: "written" });
    this.plain = document.createTextNode("");
    this.root.append(this.plain);
  }

  /** Add one chunk of a stream, from a chat or a completion. */
  add(chunk) {
    const choice = chunk.choices?.[0];
    this.droppedMessages = chunk.dropped_messages ?? this.droppedMessages;
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    if (!choice) return;
    const more = choice.delta?.content ?? choice.text ?? "";
    const logprobs = readLogprobs(choice.logprobs);
    this.finish = choice.finish_reason ?? this.finish;
    if (!more) return;
    this.firstTime ??= performance.now();
    this.text += more;
    if (!this.showProbabilities || !logprobs.length) this.plain.appendData(more);
    else this.appendMarked(more, logprobs);
    if (!chunk.usage) this.tokens += Math.max(1, logprobs.length);
  }

  appendMarked(more, logprobs) {
    const lowest = Math.min(...logprobs.map((one) => one.own));
    const candidates = fromLogprobs(logprobs.at(-1).others, this.vocabulary);
    const point = () => this.onPoint(candidates, more);
    const span = el("span", { class: "sure", onpointerenter: point, onpointerleave: () => this.onPoint(null) }, more);
    span.style.setProperty("--doubt", Math.min(1, Math.max(0, lowest / LOWEST_LOGPROB)).toFixed(3));
    this.plain = document.createTextNode("");
    this.root.append(span, this.plain);
  }

  /** Tokens per second after the first token, or null. */
  speed() {
    const seconds = (performance.now() - (this.firstTime ?? performance.now())) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }
}

/** The logprobs of a chat or a completion: for each token its own, and those of the most probable alternatives. */
export function readLogprobs(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    const others = (one) => one.top_logprobs.map((top) => [top.token, Number(top.logprob)]);
    return logprobs.content.map((one) => ({ own: Number(one.logprob), others: others(one) }));
  }
  const tops = logprobs.top_logprobs ?? [];
  const owns = logprobs.token_logprobs ?? [];
  return owns.map((own, at) => ({ own: Number(own), others: Object.entries(tops[at] ?? {}) }));
}
