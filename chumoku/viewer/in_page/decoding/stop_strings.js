// Stop strings: a text ends before the first of them, independent of token boundaries.
//
//   text returned so far | pending: possibly the start of a stop string | next characters
//
// Pending is the longest suffix of the text that is a prefix of a stop string. The failure table of Knuth, Morris and
// Pratt (1977) gives the next shorter one when a character does not match. The first complete stop string ends the text;
// if several are complete at once, the longest.
const BEFORE = 16; // last prompt tokens that the tokenizer needs to decode the spaces after them

export class StopStrings {
  constructor(stops) {
    this.stopped = false;
    this.stops = stops.map((stop) => ({ stop, table: failureTable(stop), matched: 0 }));
    this.pending = "";
  }

  /** The text that is certain. */
  push(more) {
    if (this.stopped) return "";
    const text = this.pending + more;
    for (let place = this.pending.length; place < text.length; place++) {
      const complete = this.advance(text[place]);
      if (!complete) continue;
      [this.stopped, this.pending] = [true, ""];
      return text.slice(0, place + 1 - complete);
    }
    const shown = text.length - Math.max(0, ...this.stops.map((one) => one.matched));
    this.pending = text.slice(shown);
    return text.slice(0, shown);
  }

  /** The pending rest, unless the text has stopped. */
  finish() {
    const { pending } = this;
    this.pending = "";
    return pending;
  }

  /** The length of the longest stop string that this character completes, or 0. */
  advance(character) {
    let complete = 0;
    for (const one of this.stops) {
      while (one.matched && one.stop[one.matched] !== character) one.matched = one.table[one.matched - 1];
      one.matched += Number(one.stop[one.matched] === character);
      if (one.matched < one.stop.length) continue;
      complete = Math.max(complete, one.matched);
      one.matched = 0;
    }
    return complete;
  }
}

/** Decodes tokens one by one into text, up to a stop string. */
export class TextStream {
  /** before: the prompt's tokens, because some tokenizers drop the space of a first token. */
  constructor(tokenizer, { before = [], stop = [] } = {}) {
    this.stream = tokenizer.stream();
    this.stopping = new StopStrings(stop);
    for (const token of before.slice(-BEFORE)) this.stream.push(token);
    this.stream.finish();
  }

  get stopped() {
    return this.stopping.stopped;
  }

  /** The text that is certain after this token. */
  push(token) {
    return this.stopping.push(this.stream.push(token));
  }

  /** The rest of the text, after the last token. */
  finish() {
    return this.stopping.push(this.stream.finish()) + this.stopping.finish();
  }
}

/** For each prefix of a stop string, the length of its longest proper suffix that is also a prefix. */
function failureTable(stop) {
  const table = Array(stop.length).fill(0);
  for (let place = 1, matched = 0; place < stop.length; place++) {
    while (matched && stop[place] !== stop[matched]) matched = table[matched - 1];
    table[place] = matched += Number(stop[place] === stop[matched]);
  }
  return table;
}
