// Sets of characters, as chumoku/web/character_classes.py writes them: distance from the range before, length, and so on.
//
//   [65, 26, 6, 26]  →  A-Z, a-z

/** The edges of the ranges: start, stop, start, stop … */
function edges(numbers) {
  let at = 0;
  return Uint32Array.from(numbers, (number) => (at += number));
}

/** A set as a class of a regular expression with the flag u. */
export function classSource(numbers) {
  const places = edges(numbers);
  let source = "";
  for (let at = 0; at < places.length; at += 2) {
    source += `\\u{${places[at].toString(16)}}-\\u{${(places[at + 1] - 1).toString(16)}}`;
  }
  return `[${source}]`;
}

/** A function that tells whether a character is in the set. */
export function classTest(numbers) {
  const places = edges(numbers);
  return (character) => {
    const code = character.codePointAt(0);
    let [low, high] = [0, places.length]; // the number of edges up to this code point: odd inside a range
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] <= code) low = middle + 1;
      else high = middle;
    }
    return low % 2 === 1;
  };
}
