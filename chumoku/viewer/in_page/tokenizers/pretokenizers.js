// Pre-tokenizers: how a normalized text is split before the model sees it.
//
// A piece is { text, first } with `first` for the piece that begins the whole text, or { token } for an added token.

import { toByteCharacters } from "./byte_chars.js";
import { makePattern, splitText } from "./patterns.js";

/** The function pieces → pieces of all steps. Added tokens are left alone. */
export function makePretokenizer(steps, classes) {
  const functions = steps.map((step) => STEPS[step.type](step, classes));
  return (pieces) => functions.reduce((result, split) => splitPieces(result, split), pieces);
}

/** The pieces, each split by a function (text, first) → texts. */
function splitPieces(pieces, split) {
  const result = [];
  for (const piece of pieces) {
    if (piece.token !== undefined) result.push(piece);
    else split(piece.text, piece.first).forEach((text, at) => result.push({ text, first: piece.first && at === 0 }));
  }
  return result;
}

const STEPS = {
  Split({ pattern, behavior, invert }, classes) {
    const found = makePattern(pattern, classes);
    return (text) => splitText(found, text, behavior, invert);
  },
  Metaspace({ replacement, prepend_scheme: scheme, split }) {
    const found = makePattern([replacement.replace(/[\^$\\.*+?()[\]{}|/]/, "\\$&")], []);
    return (text, first) => {
      let written = text.replaceAll(" ", replacement);
      const prepends = scheme === "always" || (scheme === "first" && first);
      if (prepends && !written.startsWith(replacement)) written = replacement + written;
      return split ? splitText(found, written, "MergedWithNext") : [written];
    };
  },
  ByteLevel({ add_prefix_space: prepends, pattern }, classes) {
    const found = pattern && makePattern(pattern, classes);
    return (text) => {
      const spaced = prepends && !text.startsWith(" ") ? ` ${text}` : text;
      return (found ? splitText(found, spaced, "Isolated") : [spaced]).map(toByteCharacters);
    };
  },
};
