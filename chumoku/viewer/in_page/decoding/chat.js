// Chat: messages become one prompt, by the pattern that Python made of the model's chat template (web/chat_pattern.py).
//
//   prompt = gap(start, m₁) · text(m₁) · gap(m₁, m₂) · text(m₂) · … · gap(mₙ, end)
//
// A gap is a list of pieces: text, a special token, the system message, or a date. Only the special tokens of gaps become
// tokens of their own; what a user types stays ordinary text. Turns that do not fit the context are left out: the oldest
// first, never the system message.
import { RequestError } from "../errors.js";
import { fixSurrogates, trimEnd, trimStart } from "../text/characters.js";
import { formatCount } from "./served_model.js";

const ROLES = ["system", "user", "assistant"];
const MONTHS = "January February March April May June July August September October November December".split(" ");
const THINK = "</think>";

const trimNewlines = (text) => text.replace(/^\n+/, "");
const afterThoughts = (text) => text.slice(text.includes(THINK) ? text.lastIndexOf(THINK) + THINK.length : 0);

const CHANGES = {
  none: (text) => text,
  trim: (text) => trimEnd(trimStart(text)),
  trim_start: trimStart,
  trim_end: trimEnd,
  trim_newlines: (text) => trimNewlines(text).replace(/\n+$/, ""),
  trim_first_newlines: trimNewlines,
  after_thoughts: afterThoughts,
  after_thoughts_and_newlines: (text) => (text.includes(THINK) ? trimNewlines(afterThoughts(text)) : text),
};

/** Refuse messages in an order that no chat has. */
export function checkMessages(messages) {
  messages.forEach(({ role }, place) => {
    if (ROLES.includes(role) && (role !== "system" || place === 0)) return;
    const order = "A system message may come first; all others must have one of the roles user, assistant.";
    throw new RequestError(`Message ${place + 1} has the role '${role}'. ${order}`, { param: "messages" });
  });
  const last = messages.at(-1);
  if (last?.role !== "user" || isBlank(last.content))
    throw new RequestError("The last message must be from the user and must not be empty.", { param: "messages" });
}

/** { text, marks: [{ id, start, end }] }: the prompt, and the special tokens in it. */
export function renderChat(pattern, messages, now = new Date()) {
  const system = messages[0].role === "system" ? messages[0].content : null;
  const turns = messages.slice(system === null ? 0 : 1);
  checkPattern(pattern, system, turns);
  const [marks, hasSystem] = [[], system === null ? "none" : "system"];
  let text = "";
  for (let place = 0; place <= turns.length; place++) {
    const [left, right] = [turns[place - 1]?.role ?? "start", turns[place]?.role ?? "end"];
    const last = place >= turns.length - 1 ? "last" : "more";
    for (const piece of pattern.gaps[[hasSystem, left, right, last].join(" ")]) {
      if (piece.mark !== undefined) marks.push({ id: piece.mark, start: text.length, end: text.length + piece.text.length });
      if (piece.date) text += formatDate(piece.date, now);
      else if (piece.system) text += CHANGES[pattern.changes.system](fixSurrogates(system));
      else text += piece.text ?? piece;
    }
    if (place === turns.length) break;
    const change = [hasSystem, right, place === 0 ? "first" : "later", last].join(" ");
    text += CHANGES[pattern.changes[change]](fixSurrogates(turns[place].content));
  }
  return { text, marks };
}

/** Refuse messages that the template refuses, or for which the pattern does not hold. */
function checkPattern({ refusals, blank }, system, turns) {
  const refuse = (message) => {
    throw new RequestError(message, { param: "messages" });
  };
  if (system !== null && refusals.system) refuse(refusals.system);
  const inTurn = turns.every(({ role }, place) => role === ["user", "assistant"][place % 2]);
  if (refusals.turns && !inTurn) refuse(refusals.turns);
  const blanks = turns.filter(({ role, content }) => role === "user" && isBlank(content));
  if (!blank && (blanks.length || (system !== null && isBlank(system))))
    refuse("This page cannot render a system or user message without text. Leave it out.");
}

/** The tokens of a prompt; special tokens come only from its marks. */
export function encodePrompt(pattern, tokenizer, { text, marks }) {
  if (pattern.whole && !hasTypedSpecial(text, marks, tokenizer)) {
    const tokens = tokenizer.encodePrompt(text);
    const specials = new Set(tokenizer.specials.values());
    if (tokens.filter((token) => specials.has(token)).join() === marks.map((mark) => mark.id).join()) return tokens;
  }
  // A user typed a special token, or this is a format whose parts are encoded one by one.
  const tokens = tokenizer.encode(text.slice(0, marks[0]?.start ?? text.length));
  marks.forEach(({ id, end }, place) => {
    tokens.push(id, ...tokenizer.encode(text.slice(end, marks[place + 1]?.start ?? text.length)));
  });
  const started = pattern.prefix.every((token, place) => tokens[place] === token);
  return started ? tokens : [...pattern.prefix, ...tokens];
}

/** Whether the name of a special token occurs in a text, not as one of its marks or inside one. */
function hasTypedSpecial(text, marks, tokenizer) {
  for (const name of tokenizer.specials.keys()) {
    let mark = 0;
    for (let start = text.indexOf(name); start >= 0; start = text.indexOf(name, start + 1)) {
      while (mark < marks.length && marks[mark].end <= start) mark++;
      const inside = mark < marks.length && marks[mark].start <= start && start + name.length <= marks[mark].end;
      if (!inside) return true;
    }
  }
  return false;
}

/** The prompt within `most` tokens, and how many messages were left out for it: { tokens, dropped }. */
export function fitPrompt(pattern, tokenizer, messages, most) {
  const system = messages[0].role === "system" ? [messages[0]] : [];
  const turns = messages.slice(system.length);
  const starts = [...turns.keys()].filter((place) => place === 0 || turns[place].role === "user");
  const encode = (start) => encodePrompt(pattern, tokenizer, renderChat(pattern, [...system, ...turns.slice(start)]));
  let tokens = encode(0);
  if (tokens.length <= most) return { tokens, dropped: 0 };
  let [low, high] = [0, starts.length - 1]; // what starts at `low` is too long; one more turn never means fewer tokens
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (encode(starts[middle]).length <= most) high = middle;
    else low = middle;
  }
  tokens = encode(starts[high]);
  if (tokens.length <= most) return { tokens, dropped: starts[high] };
  const message =
    `The last message alone makes a prompt of ${formatCount(tokens.length)} tokens, but only ${formatCount(most)} fit ` +
    "beside a reply. Shorten it or the system message, ask for a shorter reply, or use a model with a larger context.";
  throw new RequestError(message, { param: "messages", code: "context_length_exceeded" });
}

const isBlank = (text) => trimStart(text) === "";

function formatDate(format, now) {
  const two = (number) => String(number).padStart(2, "0");
  const parts = {
    d: two(now.getDate()),
    m: two(now.getMonth() + 1),
    Y: String(now.getFullYear()),
    y: two(now.getFullYear() % 100),
    B: MONTHS[now.getMonth()],
    b: MONTHS[now.getMonth()].slice(0, 3),
    H: two(now.getHours()),
    M: two(now.getMinutes()),
  };
  return format.replace(/%(.)/g, (_, name) => parts[name]);
}
