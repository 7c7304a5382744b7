// Bodies of /v1/completions and /v1/chat/completions become requests to generate a text; as server/openai/generation.py.
import { RequestError } from "../errors.js";
import { boolean, checkBody, either, integer, list, object, oneOf, optional, text } from "../request_body.js";
import { number, record } from "./body_types.js";
import { checkMessages, fitPrompt } from "./chat.js";
import { randomSeed } from "./random.js";
import { formatCount, longest, requireModel } from "./served_model.js";

const COMPLETION_TOKENS = 128;
const CHAT_TOKENS = 512;
const LIMITS = { max_tokens: 4096, max_completion_tokens: 4096, min_tokens: 4096, logprobs: 20, top_logprobs: 20, stop: 8 };
const MAX_STOP_CHARACTERS = 256;
const TOO_LONG = "context_length_exceeded";
const CHOSEN = ["temperature", "top_k", "top_p", "min_p"];
const count = optional(integer({ min: 1, max: 1 << 20 }));
const stop = text({ min: 1, max: 4096 });
const penalty = optional(number({ min: -2, max: 2 }));
const OPTIONS = {
  model: text({ min: 1, max: 256 }),
  max_tokens: count,
  temperature: optional(number({ min: 0, max: 100 })),
  top_p: optional(number({ above: 0, max: 1 })),
  top_k: optional(integer({ min: 0, max: 1 << 20 })), // 0: off
  min_p: optional(number({ min: 0, max: 1 })), // 0: off
  repetition_penalty: optional(number({ min: 0.01, max: 100 })),
  min_tokens: optional(integer({ min: 0, max: 1 << 20 })),
  stop: optional(either(stop, list(stop, { max: 64 }))),
  seed: optional(integer()),
  stream: optional(boolean),
  stream_options: optional(object({ include_usage: optional(boolean, false) })),
  logit_bias: optional(record(number({ min: -100, max: 100 }), { max: 1024 })),
  presence_penalty: penalty,
  frequency_penalty: penalty,
};
const tokens = list(integer({ min: 0, max: (1 << 24) - 1 }), { min: 1, max: 1 << 20 });
const COMPLETION = { ...OPTIONS, prompt: either(text(), tokens), logprobs: optional(integer({ min: 0, max: 100 })) };
const message = object({ role: oneOf("system", "user", "assistant"), content: text() });
const CHAT = {
  ...OPTIONS,
  messages: list(message, { min: 1, max: 2048 }),
  max_completion_tokens: count,
  logprobs: optional(boolean),
  top_logprobs: optional(integer({ min: 0, max: 100 })),
};

function refuse(message, param, code = null) {
  throw new RequestError(message, { param, code });
}

/** { request, stop, trim, dropped, usage } of a body of /v1/completions. */
export function planCompletion(runtime, given) {
  const body = check(runtime, COMPLETION, given);
  const { generation, tokenizer } = runtime;
  const prompt = Array.isArray(body.prompt) ? body.prompt : encodePrompt(runtime, body.prompt);
  const request = {
    prompt,
    maxNewTokens: body.max_tokens ?? COMPLETION_TOKENS,
    minNewTokens: body.min_tokens ?? 0,
    sampling: { ...samplingOf(body, generation), forbidden: generation.forbidden },
    ends: generation.ends,
    logprobs: body.logprobs,
  };
  checkFits(runtime, request, tokenizer);
  return { request, stop: stopStrings(body), trim: false, dropped: 0, usage: Boolean(body.stream_options?.include_usage) };
}

/** The same for /v1/chat/completions. */
export function planChat(runtime, given) {
  const body = check(runtime, CHAT, given);
  const { generation, tokenizer } = runtime;
  if (body.top_logprobs !== null && !body.logprobs)
    refuse("The field 'top_logprobs' requires logprobs to be true.", "top_logprobs");
  if (!generation.chat)
    refuse(generation.chat_notice ?? "This model has no chat template; it can only complete texts.", "messages");
  const { pattern, ends, forbidden } = generation.chat;
  const room = body.max_completion_tokens ?? body.max_tokens ?? CHAT_TOKENS;
  checkMessages(body.messages);
  // At most a quarter of the context is kept free for the reply, even if more tokens are wanted.
  const most = generation.context - Math.min(room, Math.floor(generation.context / 4));
  const { tokens: prompt, dropped } = fitPrompt(pattern, tokenizer, body.messages, most);
  const request = {
    prompt,
    maxNewTokens: Math.min(room, generation.context - prompt.length),
    minNewTokens: body.min_tokens ?? 0,
    sampling: { ...samplingOf(body, generation), forbidden },
    ends,
    logprobs: body.logprobs ? (body.top_logprobs ?? 0) : null,
  };
  checkFits(runtime, request);
  return { request, stop: stopStrings(body), trim: true, dropped, usage: Boolean(body.stream_options?.include_usage) };
}

function check(runtime, schema, given) {
  const body = checkBody(schema, given);
  for (const [name, limit] of Object.entries(LIMITS)) {
    const value = name === "stop" ? stopStrings(body).length : body[name];
    if (!(value > limit) || typeof value === "boolean") continue;
    refuse(`'${name}' is limited to ${formatCount(limit)} in this page; the request asks for ${formatCount(value)}.`, name);
  }
  const long = stopStrings(body).find((one) => [...one].length > MAX_STOP_CHARACTERS);
  if (long)
    refuse(`A stop string has ${formatCount([...long].length)} characters; the limit is ${MAX_STOP_CHARACTERS}.`, "stop");
  requireModel(runtime, body.model, "decoder", "cannot generate text");
  if (body.stream_options && !body.stream)
    refuse("The field 'stream_options' requires stream to be true.", "stream_options");
  return body;
}

const stopStrings = (body) => (typeof body.stop === "string" ? [body.stop] : (body.stop ?? []));

/** The tokens of a prompt, encoded as in training. An empty prompt starts from the end-of-text token. */
function encodePrompt({ model, tokenizer }, prompt) {
  const { begin, end } = tokenizer.roles;
  const edge = end ?? begin;
  const found = [...tokenizer.prefixAndSuffix[0], ...tokenizer.encode(prompt)];
  if (!found.length && edge !== null) found.push(edge);
  if (!found.length)
    refuse("An empty prompt needs an end or begin token to start from, and this tokenizer has neither.", "prompt");
  if (found.length > model.config.context) {
    const most = `this model reads ${formatCount(model.config.context)} at most`;
    const size = `The prompt has ${formatCount(found.length)} tokens, and ${most}.`;
    refuse(`${size} Shorten it, or use a model with a larger context.`, "prompt", TOO_LONG);
  }
  return found;
}

/** Refuse what the model cannot compute. */
function checkFits({ model, generation }, { prompt, sampling }) {
  const { vocabulary } = model.config;
  const room = longest(model, generation.context);
  const size = `The prompt has ${formatCount(prompt.length)} tokens; at most ${formatCount(room)} fit.`;
  if (prompt.length > room) refuse(`${size} Shorten it.`, "prompt", TOO_LONG);
  if (prompt.some((token) => token >= vocabulary)) refuse(`Token ids must be from 0 to ${vocabulary - 1}.`, "prompt");
  const wrong = Object.keys(sampling.bias).find((name) => !/^\d+$/.test(name) || Number(name) >= vocabulary);
  if (wrong === undefined) return;
  const reason = /^\d+$/.test(wrong)
    ? `The field 'logit_bias' names token ${wrong}; token ids are from 0 to ${vocabulary - 1}.`
    : `The keys of 'logit_bias' must be token ids; '${wrong}' is not a number.`;
  refuse(reason, "logit_bias");
}

/** How tokens are chosen; what a request leaves out is the model's default. Without a seed, the seed is random. */
export function samplingOf(body, { sampling }) {
  const off = { top_k: 0, top_p: 1, min_p: 0 };
  const given = [...CHOSEN, "repetition_penalty"].filter((name) => body[name] !== null);
  const explicit = given.map((name) => [name, body[name] === off[name] ? null : body[name]]);
  const chosen = { ...sampling.model, ...Object.fromEntries(explicit) };
  if (!CHOSEN.some((name) => name in chosen)) chosen.min_p = sampling.min_p;
  return {
    ...{ temperature: sampling.temperature, top_p: sampling.top_p, repetition_penalty: 1 },
    ...chosen,
    presence_penalty: body.presence_penalty ?? 0,
    frequency_penalty: body.frequency_penalty ?? 0,
    bias: body.logit_bias ?? {},
    seed: body.seed ?? randomSeed(),
  };
}
