// /v1/completions and /v1/chat/completions: one response, or the chunks of a stream.
//
//   body → plan → events of tokens → pieces of text → response or chunks
import { RequestError } from "../errors.js";
import { trimStart } from "../text/characters.js";
import { generate } from "./generate.js";
import { planChat, planCompletion } from "./plan.js";
import { GeneratedText, makeChoice, makeChunkChoice, makeHeader, makeUsage } from "./responses.js";
import { TextStream } from "./stop_strings.js";

const NOT_FINITE = "The model's logits are not finite (NaN or infinity), so no token can be chosen.";

export function completions(runtime, body, check) {
  return respond(runtime, planCompletion(runtime, body), { chat: false, check });
}

export function streamCompletions(runtime, body, check) {
  return stream(runtime, planCompletion(runtime, body), { chat: false, check });
}

export function chatCompletions(runtime, body, check) {
  return respond(runtime, planChat(runtime, body), { chat: true, check });
}

export function streamChatCompletions(runtime, body, check) {
  return stream(runtime, planChat(runtime, body), { chat: true, check });
}

async function respond(runtime, plan, { chat, check }) {
  const text = new GeneratedText(runtime.tokenizer, plan.trim);
  let cached = 0;
  for await (const piece of generatePieces(runtime, plan, check)) {
    text.add(piece);
    cached = piece.cached;
  }
  return {
    ...makeHeader(runtime.name, { chat, stream: false }),
    usage: makeUsage(plan.request.prompt.length, text.count, cached),
    ...(plan.dropped ? { dropped_messages: plan.dropped } : {}),
    choices: [makeChoice(chat, text)],
  };
}

async function* stream(runtime, plan, { chat, check }) {
  const header = makeHeader(runtime.name, { chat, stream: true, usage: plan.usage });
  const text = new GeneratedText(runtime.tokenizer, plan.trim);
  let cached = 0;
  if (chat) {
    const first = { index: 0, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null };
    yield { ...header, ...(plan.dropped ? { dropped_messages: plan.dropped } : {}), choices: [first] };
  }
  for await (const piece of generatePieces(runtime, plan, check)) {
    const logprobs = text.add(piece);
    cached = piece.cached;
    if (!piece.text && !logprobs.length && piece.finishReason === null) continue;
    yield { ...header, choices: [makeChunkChoice(chat, piece, text, logprobs)] };
  }
  if (plan.usage) yield { ...header, choices: [], usage: makeUsage(plan.request.prompt.length, text.count, cached) };
}

/** What each step adds to a text: { text, token, likelihood, finishReason, cached }. */
async function* generatePieces({ engine, tokenizer, generation }, { request, stop, trim }, check) {
  const utterance = new TextStream(tokenizer, { before: request.prompt, stop });
  let trimming = trim;
  for await (const { finished, ...event } of generate(engine, request, { context: generation.context, check })) {
    if (finished === "failed") throw new RequestError(NOT_FINITE, { status: 500, code: "engine_failure" });
    let text = event.token === null ? "" : utterance.push(event.token);
    let finishReason = utterance.stopped ? "stop" : null;
    if (!utterance.stopped && finished !== null) {
      text += utterance.finish();
      finishReason = finished === "end" || utterance.stopped ? "stop" : "length";
    }
    if (trimming) text = trimStart(text);
    trimming = trimming && !text;
    yield { ...event, text, finishReason };
    if (utterance.stopped) return;
  }
}
