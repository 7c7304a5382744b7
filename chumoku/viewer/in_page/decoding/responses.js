// Responses in the format of the OpenAI API: complete, and as chunks of a stream; as server/openai/responses.py.
//
//   completion   choices[0]: text, logprobs { tokens, token_logprobs, top_logprobs, text_offset }, finish_reason
//   chat         choices[0]: message or delta { role, content }, logprobs { content: [token, logprob, bytes, top] }, …
import { trimStart } from "../text/characters.js";

const BYTES_PREFIX = "bytes:"; // of the text of a token that is a part of a character
const countCharacters = (text) => [...text].length;

/** One text so far. A token's logprobs are released with its text; tokens cut off by a stop string have none. */
export class GeneratedText {
  constructor(tokenizer, trim) {
    Object.assign(this, { tokenizer, trim, text: "", logprobs: [], count: 0, characters: 0, finishReason: null });
    this.waiting = []; // logprobs, each with the offset of its token
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.decoded = 0; // characters of all tokens
    this.shown = 0; // characters of the text, including the trimmed ones
    this.hidden = ""; // characters of the tokens before the first text is shown
  }

  /** Add a piece { text, token, likelihood, finishReason }; returns the logprobs that can be shown now. */
  add({ text, token, likelihood, finishReason }) {
    this.text += text;
    this.finishReason = finishReason;
    this.count += Number(token !== null);
    if (token !== null && likelihood) this.wait(token, likelihood);
    if (text) {
      this.shown += countCharacters(this.hidden) - countCharacters(trimStart(this.hidden)) + countCharacters(text);
      this.hidden = "";
    }
    // Without a stop string all of the text is shown: the end token itself arrives as null.
    const complete = finishReason === "length" || (finishReason === "stop" && token === null);
    const ready = this.waiting.filter((one) => complete || one.start < this.shown);
    this.waiting = finishReason ? [] : this.waiting.slice(ready.length);
    this.logprobs.push(...ready);
    return ready;
  }

  wait(token, { logprob, top }) {
    const own = this.tokenizer.tokenText(token);
    const others = top.map(([other, value]) => ({ ...this.tokenizer.tokenText(other), logprob: value }));
    this.waiting.push({ start: this.decoded, ...own, logprob, top: others });
    const more = this.decoder.decode(own.bytes, { stream: true });
    this.decoded += countCharacters(more);
    if (this.trim && !this.shown) this.hidden += more;
  }
}

/** The header of a response or a chunk. */
export function makeHeader(model, { chat, stream, usage = false }) {
  const words = [...crypto.getRandomValues(new Uint32Array(3))];
  const number = words.map((word) => word.toString(16).padStart(8, "0")).join("");
  const object = chat ? (stream ? "chat.completion.chunk" : "chat.completion") : "text_completion";
  const id = (chat ? "chatcmpl-" : "cmpl-") + number;
  return { id, created: Math.floor(Date.now() / 1000), model, ...(stream && usage ? { usage: null } : {}), object };
}

/** The choice of a complete response. */
export function makeChoice(chat, text) {
  const logprobs = chat ? chatLogprobs(text.logprobs) : completionLogprobs(text.logprobs, text);
  const rest = { logprobs, finish_reason: text.finishReason };
  if (!chat) return { index: 0, text: text.text, ...rest };
  return { index: 0, message: { role: "assistant", content: text.text, refusal: null }, ...rest };
}

/** The choice of a chunk: what a piece added. */
export function makeChunkChoice(chat, piece, text, released) {
  const logprobs = chat ? chatLogprobs(released) : completionLogprobs(released, text);
  const rest = { logprobs, finish_reason: piece.finishReason };
  if (!chat) return { index: 0, text: piece.text, ...rest };
  return { index: 0, delta: piece.text ? { content: piece.text } : {}, ...rest };
}

function completionLogprobs(logprobs, text) {
  if (!logprobs.length) return null;
  const offsets = logprobs.map((one) => {
    const offset = text.characters;
    text.characters += one.text.startsWith(BYTES_PREFIX) ? 0 : countCharacters(one.text);
    return offset;
  });
  // Of two tokens with the same text, the more likely one is shown.
  const top = (one) => Object.fromEntries(one.top.toReversed().map((other) => [other.text, other.logprob]));
  return {
    tokens: logprobs.map((one) => one.text),
    token_logprobs: logprobs.map((one) => one.logprob),
    top_logprobs: logprobs.map(top),
    text_offset: offsets,
  };
}

function chatLogprobs(logprobs) {
  if (!logprobs.length) return null;
  const describe = ({ text, logprob, bytes }) => ({ token: text, logprob, bytes: [...bytes] });
  return { content: logprobs.map((one) => ({ ...describe(one), top_logprobs: one.top.map(describe) })), refusal: null };
}

/** The counts of tokens; `cached` is the part of the prompt that was not computed again. */
export function makeUsage(prompt, completion, cached = 0) {
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: cached },
  };
}
