// The tokenizer: text → token ids → text, exactly as chumoku/text/tokenizer.py, from the data of web/tokenizer_data.py.
//
//   const tokenizer = makeTokenizer(data);
//   tokenizer.encode("こたつでみかん") → [...]      tokenizer.decode([...]) → "こたつでみかん"
//
// A special token typed in a text is encoded as text unless `special` is true.

import { RequestError } from "../errors.js";
import { fixSurrogates, isSpace } from "../text/characters.js";
import { makeAddedTokens } from "./added_tokens.js";
import { makeBpe } from "./bpe.js";
import { joinBytes, toUtf8, tokenToBytes } from "./byte_chars.js";
import { classTest } from "./classes.js";
import { makeDecoder } from "./decoders.js";
import { BYTE_TOKEN, labelTokens, tokenBytes, tokenLabel, tokenText } from "./labels.js";
import { makeNormalizer } from "./normalizers.js";
import { makePretokenizer } from "./pretokenizers.js";
import { findLanguage, readRoles } from "./roles.js";
import { Stream } from "./stream_decoder.js";
import { makeUnigram } from "./unigram.js";
import { makeVocabulary } from "./vocabulary.js";
import { makeWordLevel, makeWordPiece } from "./words.js";

const MODELS = { BPE: makeBpe, Unigram: makeUnigram, WordLevel: makeWordLevel, WordPiece: makeWordPiece };
const SPECIAL = 1;
// Longer texts are split before a space or line end (without either, anywhere), so that time grows linearly.
const MAX_PIECE_LENGTH = 1 << 13;
const MAX_SPLITS_TRIED = 100;
const MAX_CACHED = 1 << 14;

/** The tokenizer of exported data. */
export function makeTokenizer(data) {
  return new Tokenizer(data);
}

class Tokenizer {
  #encodePiece; // (text, special) → ids
  #decodeTokens;
  #vocabulary;
  #names; // id → name of added tokens
  #unknownCache = new Map();
  #splitCharacters;

  constructor(data) {
    const added = data.added.map(([id, content, found, flags]) => ({ id, content, found, flags }));
    this.kind = data.kind;
    this.size = data.size;
    this.byteLevel = data.byte_level;
    this.stopTokens = data.stop_tokens;
    this.prefixAndSuffix = data.prefix_and_suffix;
    this.roles = readRoles(data.roles);
    this.specials = new Map(added.filter(({ flags }) => flags & SPECIAL).map(({ content, id }) => [content, id]));
    this.isInvisible = classTest(data.classes[data.invisible]); // whether labels show the number of a character instead
    this.#splitCharacters = Array.from(data.split_characters);
    this.#names = new Map(added.map(({ id, found }) => [id, found]));
    this.#vocabulary = makeVocabulary(data.model);
    this.#decodeTokens = makeDecoder(data.decoder, data.classes);
    this.#encodePiece = makeEncoder(data, added, this.#vocabulary);
  }

  /** The language that a translator's sources ask for by default, or null. */
  get targetLanguage() {
    const before = this.prefixAndSuffix[0];
    return [...this.roles.languages].find(([, id]) => before.includes(id))?.[0] ?? null;
  }

  /** The tokens before and after a text that an encoder reads: its prefix and suffix, or else its end token. */
  get frame() {
    const hasOwn = this.prefixAndSuffix.some((side) => side.length);
    return hasOwn || this.roles.end === null ? this.prefixAndSuffix : [[], [this.roles.end]];
  }

  /**
   * The ids of a text. `special` recognizes special tokens in the text; `language`, `begin` and `end` add the tokens of
   * these roles, and `source` the one that a translator's sources begin with, if there is one.
   */
  encode(text, { special = false, begin = false, end = false, language = null, source = false } = {}) {
    const ids = source && this.roles.sourceBegin !== null ? [this.roles.sourceBegin] : [];
    if (language) ids.push(findLanguage(this.roles.languages, language));
    if (begin) ids.push(this.#role("begin"));
    for (const piece of this.#piecesOf(fixSurrogates(text), special)) {
      for (const id of this.#encodePiece(piece, special)) ids.push(id);
    }
    if (end) ids.push(this.#role("end"));
    return ids;
  }

  /** The ids of a chat's prompt, whose special tokens are recognized; a long one is not split around them, unlike in `encode`. */
  encodePrompt(text) {
    return this.#piecesOf(fixSurrogates(text), false).flatMap((piece) => this.#encodePiece(piece, true));
  }

  /** The text of ids; special tokens are left out unless `special` is true. */
  decode(ids, { special = false } = {}) {
    const tokens = this.#checkIds(ids).map((id) => this.#tokenOf(id));
    return this.#decodeTokens(
      tokens.filter((token) => token !== undefined && (special || !this.specials.has(token))),
    );
  }

  /** The bytes of ids; byte-level kinds restore exactly the bytes that were encoded. */
  decodeBytes(ids) {
    if (!this.byteLevel) return toUtf8(this.decode(ids));
    const pieces = this.#checkIds(ids).map((id) => this.token(id));
    return joinBytes(pieces.filter((piece) => !this.specials.has(piece)).map(tokenToBytes));
  }

  /** The token with this id, as written in the vocabulary. */
  token(id) {
    this.#checkIds([id]);
    return this.#tokenOf(id) ?? "";
  }

  /** Whether a character has no token: it is encoded as <unk>, or as bytes in a vocabulary of pieces of text. */
  isUnknown(character) {
    const known = this.#unknownCache.get(character);
    if (known !== undefined) return known;
    const ids = this.byteLevel ? [] : this.encode(character);
    const found = ids.some((id) => id === this.roles.unknown || BYTE_TOKEN.test(this.token(id)));
    if (this.#unknownCache.size < MAX_CACHED) this.#unknownCache.set(character, found);
    return found;
  }

  /** A decoder that takes one id at a time. */
  stream() {
    return new Stream(
      (ids) => this.decode(ids),
      (ids) => this.#endsInByte(ids),
    );
  }

  /** A short readable name of a token. */
  label(id) {
    return tokenLabel(this, id);
  }

  /** Each token of a row as { id, text }, for the page; parts of a character also have { character, part }. */
  labelTokens(ids) {
    return labelTokens(this, ids);
  }

  /** The bytes that a token adds to a text. */
  tokenBytes(id) {
    return tokenBytes(this, id);
  }

  /** { text, bytes } of a token, for log-probabilities. */
  tokenText(id) {
    return tokenText(this, id);
  }

  #tokenOf(id) {
    return this.#names.get(id) ?? this.#vocabulary.token(id);
  }

  #endsInByte(ids) {
    const last = ids.findLast((id) => !this.specials.has(this.#tokenOf(id)));
    return last !== undefined && BYTE_TOKEN.test(this.#tokenOf(last) ?? "");
  }

  /** The text, or its pieces that can be encoded separately if it is long. */
  #piecesOf(text, special) {
    if (text.length <= MAX_PIECE_LENGTH || !this.#splitCharacters.length) return [text];
    if (Array.from(text).length <= MAX_PIECE_LENGTH) return [text];
    const parts = special ? this.#aroundSpecials(text) : [text];
    return parts.flatMap((part) => splitLong(Array.from(part), this.#splitCharacters));
  }

  /** The text split before and after each special token in it. */
  #aroundSpecials(text) {
    if (!this.specials.size) return [text];
    const names = [...this.specials.keys()].map((name) => name.replace(/[\^$\\.*+?()[\]{}|/]/g, "\\$&"));
    return text.split(new RegExp(`(${names.join("|")})`, "u"));
  }

  #checkIds(ids) {
    const wrong = ids.find((id) => !(id >= 0 && id < this.size));
    if (wrong === undefined) return ids;
    const size = this.size.toLocaleString("en-US");
    throw new RequestError(`There is no token ${wrong}: this tokenizer has ${size} tokens, numbered from 0.`);
  }

  #role(role) {
    if (this.roles[role] !== null) return this.roles[role];
    const known = [...this.specials.keys()].join(", ");
    throw new RequestError(`This tokenizer has no token for the role '${role}'. Its special tokens are ${known}.`);
  }
}

/** The function (text, special) → ids: added tokens, normalizer, pre-tokenizer, model. */
function makeEncoder(data, added, vocabulary) {
  const { classes, words, spaces } = data;
  const normalize = makeNormalizer(data.normalizer, classes);
  const split = makePretokenizer(data.pre_tokenizer, classes);
  const splitTyped = makePretokenizer(data.typed_specials ? [data.typed_specials] : [], classes);
  const toIds = MODELS[data.model.type](data.model, vocabulary);
  const tokens = makeAddedTokens({ added, words, spaces, classes });
  return (text, special) => {
    const pieces = split(tokens.extract(text, normalize, !special));
    return (special ? pieces : splitTyped(pieces)).flatMap((piece) =>
      piece.token === undefined ? (piece.text ? toIds(piece.text) : []) : [piece.token],
    );
  };
}

/** Long texts in pieces, split before a single space or line end between two other characters, where one starts anyway. */
function splitLong(characters, splitCharacters) {
  const pieces = [];
  let start = 0;
  while (characters.length - start > MAX_PIECE_LENGTH) {
    const stop = findSplit(characters, start + MAX_PIECE_LENGTH / 2, start + MAX_PIECE_LENGTH, splitCharacters);
    pieces.push(characters.slice(start, stop).join(""));
    start = stop;
  }
  pieces.push(characters.slice(start).join(""));
  return pieces;
}

function findSplit(characters, low, high, splitCharacters) {
  let index = high;
  for (let tried = 0; tried < MAX_SPLITS_TRIED; tried += 1) {
    index = Math.max(...splitCharacters.map((one) => characters.lastIndexOf(one, index - 1)));
    if (index < low) break;
    if (!isSpace(characters[index - 1]) && !isSpace(characters[index + 1])) return index;
  }
  return high;
}
