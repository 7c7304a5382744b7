// Added tokens: tokens that are found in a text as they are, before it is split.
//
// The leftmost is found first, and of those that begin there the longest. A token may need to be a word of its own, and
// may take the spaces before or after it. A normalized one is found in the normalized text.

import { classTest } from "./classes.js";

const [SPECIAL, SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED] = [1, 2, 4, 8, 16];

/** { extract(text, normalize, plain) → pieces }; `plain` leaves special tokens in the text. */
export function makeAddedTokens({ added, words, spaces, classes }) {
  const isWord = words === null ? null : classTest(classes[words]);
  const isSpace = spaces === null ? null : classTest(classes[spaces]);
  const [raw, normalized] = [0, NORMALIZED].map((flag) =>
    makeTrie(added.filter((token) => (token.flags & NORMALIZED) === flag)),
  );

  function fits(text, start, stop, { flags }) {
    if (!(flags & SINGLE_WORD)) return true;
    const [before, after] = [lastCharacter(text, start), text.slice(stop, stop + 2)];
    return !(before && isWord(before)) && !(after && isWord(after));
  }

  /** The text as pieces: { text, first } and { token }. */
  function split(piece, trie, plain) {
    const { text } = piece;
    const pieces = [];
    const add = (start, stop) => {
      if (start < stop) pieces.push({ text: text.slice(start, stop), first: piece.first && start === 0 });
    };
    let [from, end] = [0, 0];
    for (let match; (match = nextMatch(text, trie, from)) !== null; ) {
      let { start, stop, token } = match;
      from = stop;
      if ((plain && token.flags & SPECIAL) || !fits(text, start, stop, token)) continue;
      if (token.flags & LSTRIP) while (start > 0 && isSpace(text[start - 1])) start -= 1;
      if (token.flags & RSTRIP) while (stop < text.length && isSpace(text[stop])) stop += 1;
      add(end, start); // nothing if the token before has taken these spaces
      pieces.push({ token: token.id });
      end = stop;
    }
    add(end, text.length);
    return pieces;
  }

  const splitAll = (pieces, trie, plain) =>
    pieces.flatMap((piece) => (piece.token === undefined ? split(piece, trie, plain) : [piece]));

  return {
    extract(text, normalize, plain) {
      const pieces = splitAll([{ text, first: true }], raw, plain);
      for (const piece of pieces) if (piece.token === undefined) piece.text = normalize(piece.text);
      return splitAll(pieces, normalized, plain);
    },
  };
}

/** A tree of UTF-16 units: unit → { next, token }. */
function makeTrie(tokens) {
  const root = new Map();
  for (const token of tokens) {
    let [next, node] = [root, null];
    for (let at = 0; at < token.found.length; at += 1) {
      const unit = token.found.charCodeAt(at);
      if (!next.has(unit)) next.set(unit, { next: new Map(), token: null });
      node = next.get(unit);
      next = node.next;
    }
    node.token = token;
  }
  return root;
}

/** The first and longest match at or after an index, or null. */
function nextMatch(text, root, from) {
  for (let start = from; root.size && start < text.length; start += 1) {
    let found = null;
    let node = root.get(text.charCodeAt(start));
    for (let stop = start + 1; node !== undefined; stop += 1) {
      if (node.token) found = { start, stop, token: node.token };
      node = node.next.get(text.charCodeAt(stop));
    }
    if (found) return found;
  }
  return null;
}

function lastCharacter(text, end) {
  return Array.from(text.slice(Math.max(0, end - 2), end)).at(-1) ?? "";
}
