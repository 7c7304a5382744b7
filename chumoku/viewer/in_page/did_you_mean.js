// The known name most similar to a wrong one, as Python's difflib finds it.
//
//   similarity = 2 · M / T      M characters in matching blocks (the longest common substring, then the same to its left
//                               and to its right), T characters of both names

const MAX_CHARS = 200;

/** A sentence that suggests a known name; `otherwise` if none is similar enough. */
export function didYouMean(name, known, otherwise = "", cutoff = 0.6) {
  const wrong = [...name].slice(0, MAX_CHARS).join("").toLowerCase();
  let best = null;
  for (const one of known) {
    const score = similarity(one, wrong);
    if (score >= cutoff && (!best || score > best.score || (score === best.score && one > best.name))) best = { name: one, score };
  }
  return best ? `Did you mean ${best.name}?` : otherwise;
}

export function similarity(first, second) {
  const [a, b] = [[...first], [...second]];
  const total = a.length + b.length;
  return total ? (2 * matchingCharacters(a, b)) / total : 1;
}

function matchingCharacters(a, b) {
  const { size, endA, endB } = longestMatch(a, b);
  if (!size) return 0;
  const left = matchingCharacters(a.slice(0, endA - size), b.slice(0, endB - size));
  return size + left + matchingCharacters(a.slice(endA), b.slice(endB));
}

/** The longest common substring: of several, the one that starts first in `a`, then in `b`. */
function longestMatch(a, b) {
  let best = { size: 0, endA: 0, endB: 0 };
  let before = new Uint16Array(b.length + 1); // common characters that end before each place of b
  for (let i = 0; i < a.length; i++) {
    const here = new Uint16Array(b.length + 1);
    for (let j = 0; j < b.length; j++) {
      if (a[i] !== b[j]) continue;
      here[j + 1] = before[j] + 1;
      if (here[j + 1] > best.size) best = { size: here[j + 1], endA: i + 1, endB: j + 1 };
    }
    before = here;
  }
  return best;
}
