// Regular expressions, and splitting a text with them.
//
//   Removed               the-end  →  the | end
//   Isolated              the-end  →  the | - | end
//   MergedWithPrevious    the-end  →  the- | end
//   MergedWithNext        the-end  →  the | -end
//   Contiguous            the--end →  the | -- | end

import { classSource } from "./classes.js";

/** The regular expression of a pattern: texts, and numbers of sets of characters. */
export function makePattern(parts, classes) {
  const source = parts.map((part) => (typeof part === "string" ? part : classSource(classes[part])));
  return new RegExp(source.join(""), "gu");
}

/** The whole text as parts [start, stop, matches]; an empty match directly after a match does not count. */
export function findMatches(pattern, text) {
  const parts = [];
  let [from, end, last] = [0, 0, -1];
  while (from <= text.length) {
    pattern.lastIndex = from;
    const match = pattern.exec(text);
    if (match === null) break;
    const [start, stop] = [match.index, match.index + match[0].length];
    if (start === stop && stop === last) {
      from += text.codePointAt(from) > 0xffff ? 2 : 1;
      continue;
    }
    if (end < start) parts.push([end, start, false]);
    parts.push([start, stop, true]);
    [from, end, last] = [stop, stop, stop];
  }
  if (end < text.length) parts.push([end, text.length, false]);
  return parts;
}

/** The text with every match replaced. */
export function replaceMatches(pattern, text, content) {
  return findMatches(pattern, text)
    .map(([start, stop, matches]) => (matches ? content : text.slice(start, stop)))
    .join("");
}

/** The pieces of a text, without empty ones. */
export function splitText(pattern, text, behavior, invert = false) {
  let parts = findMatches(pattern, text);
  if (invert) parts = parts.map(([start, stop, matches]) => [start, stop, !matches]);
  return BEHAVIORS[behavior](parts)
    .filter(([start, stop]) => start < stop)
    .map(([start, stop]) => text.slice(start, stop));
}

const BEHAVIORS = {
  Removed: (parts) => parts.filter(([, , matches]) => !matches),
  Isolated: (parts) => parts,
  Contiguous: (parts) => merge(parts, (matches, before) => matches === before),
  MergedWithPrevious: (parts) => merge(parts, (matches, before) => matches && !before),
  MergedWithNext: (parts) => {
    const backward = parts.map(([start, stop, matches]) => [-stop, -start, matches]).reverse();
    const merged = merge(backward, (matches, before) => matches && !before);
    return merged.map(([start, stop]) => [-stop, -start]).reverse();
  },
};

/** The parts, each joined with the one before it where `joins` (matches, the one before matches) is true. */
function merge(parts, joins) {
  const merged = [];
  let before = false;
  for (const [start, stop, matches] of parts) {
    if (joins(matches, before) && merged.length) merged.at(-1)[1] = stop;
    else merged.push([start, stop]);
    before = matches;
  }
  return merged;
}
