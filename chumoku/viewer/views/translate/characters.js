// Tokens that are bytes of one character become one token: 鬱 1/3, 鬱 2/3, 鬱 3/3 → 鬱.
//
//   a source character is attended to as much as its bytes together; a target character attends as its bytes do on average

/** A translation of the server, with one token for each character. */
export function mergeBytes({ source, hypotheses, ...rest }) {
  return { ...rest, source: mergeTokens(source), hypotheses: hypotheses.map((one) => mergeHypothesis(one, source)) };
}

function mergeHypothesis(one, source) {
  const merged = { ...one, tokens: mergeTokens(one.tokens) };
  const { alignment, candidates } = one;
  if (candidates) merged.candidates = groups(one.tokens, candidates.length).map(([first]) => candidates[first]);
  if (alignment) {
    const columns = groups(source, alignment[0]?.length ?? 0);
    const sums = alignment.map((row) => columns.map((places) => sum(places.map((place) => Number(row[place])))));
    merged.alignment = groups(one.tokens, sums.length).map((rows) =>
      columns.map((_, column) => sum(rows.map((row) => sums[row][column])) / rows.length),
    );
  }
  return merged;
}

function mergeTokens(tokens) {
  return groups(tokens, tokens.length).map(([first]) => ({ ...tokens[first], text: tokens[first].character ?? tokens[first].text }));
}

/** The places of each character's tokens, among the first `length` places. */
function groups(tokens, length) {
  const found = [];
  for (let place = 0; place < length; place++) {
    if (tokens[place]?.part > 1) found.at(-1).push(place);
    else found.push([place]);
  }
  return found;
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
