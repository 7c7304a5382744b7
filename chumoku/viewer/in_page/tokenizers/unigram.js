// Unigram: of all ways to split a text into pieces, the one with the highest sum of scores (Viterbi).
//
//   best(j) = max over pieces text[i:j] of best(i) + score(piece)

import { RequestError } from "../errors.js";

const UNKNOWN_PENALTY = 10;

/** The function text → ids of a Unigram model. */
export function makeUnigram({ tokens, scores, unknown, byte_fallback: byteFallback }, vocabulary) {
  const unknownScore = scores.reduce((lowest, score) => Math.min(lowest, score), Infinity) - UNKNOWN_PENALTY;
  const lengths = pieceLengths(tokens);

  function unknownId() {
    if (unknown === null) throw new RequestError("This tokenizer fails on a text: it has no unknown token.");
    return unknown;
  }

  /** For each index, the best piece that ends there: its start, its id and the score of the path. */
  function findPaths(text) {
    const paths = Array.from({ length: text.length + 1 }, () => ({ start: -1, id: 0, score: 0 }));
    const offer = (start, stop, id, score) => {
      if (paths[stop].start < 0 || score > paths[stop].score) paths[stop] = { start, id, score };
    };
    for (let start = 0, size; start < text.length; start += size) {
      size = text.codePointAt(start) > 0xffff ? 2 : 1;
      let isKnown = false;
      for (const length of lengths.get(text.charCodeAt(start)) ?? []) {
        if (start + length > text.length) break;
        const id = vocabulary.id(text.slice(start, start + length));
        if (id === undefined) continue;
        offer(start, start + length, id, scores[id] + paths[start].score);
        isKnown ||= length === size;
      }
      if (!isKnown) offer(start, start + size, unknownId(), unknownScore + paths[start].score);
    }
    return paths;
  }

  return (text) => {
    const paths = findPaths(text);
    const pieces = []; // from the end; neighboring unknown characters are one piece
    for (let [stop, wasUnknown] = [text.length, false]; stop > 0; ) {
      const { start, id } = paths[stop];
      const piece = text.slice(start, stop);
      if (id === unknown && wasUnknown) pieces[pieces.length - 1] = piece + pieces.at(-1);
      else pieces.push(piece);
      wasUnknown = id === unknown;
      stop = start;
    }
    return pieces.reverse().flatMap((piece) => {
      const id = vocabulary.id(piece);
      if (id !== undefined) return [id];
      return (byteFallback && vocabulary.byteIds(piece)) || [unknownId()];
    });
  };
}

/** First UTF-16 unit → the lengths of the pieces that begin with it, in ascending order. */
function pieceLengths(tokens) {
  const found = new Map();
  for (const token of tokens) {
    if (!token) continue;
    const unit = token.charCodeAt(0);
    if (!found.has(unit)) found.set(unit, new Set());
    found.get(unit).add(token.length);
  }
  return new Map([...found].map(([unit, lengths]) => [unit, [...lengths].sort((one, other) => one - other)]));
}
