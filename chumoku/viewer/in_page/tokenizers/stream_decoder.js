// Streaming detokenization: the returned texts, joined, equal the decoding of all ids at once.
//
// A token may be part of a character. Text that ends in � may change with the next token, so it is held back until then
// or until `finish`. Each call also decodes the tokens returned last, because some decoders treat the first token of a
// text (its leading space) differently.

const REPLACEMENT = "\ufffd";

export class Stream {
  #decode;
  #isIncomplete;
  #ids = [];
  #context = 0; // decoding starts here …
  #shown = 0; // … and the text before this token has been returned

  /** `isIncomplete` tells whether the text of these ids may still change with the next id. */
  constructor(decode, isIncomplete) {
    this.#decode = decode;
    this.#isIncomplete = isIncomplete;
  }

  /** The text that this token completes, or "" while a character is incomplete. */
  push(id) {
    this.#ids.push(id);
    const [before, after] = this.#texts();
    const isPending = this.#isIncomplete(this.#ids.slice(this.#shown));
    if (isPending || after.endsWith(REPLACEMENT) || !after.startsWith(before)) return "";
    if (after !== before) [this.#context, this.#shown] = [this.#shown, this.#ids.length];
    return after.slice(before.length);
  }

  /** The text that was held back. */
  finish() {
    const [before, after] = this.#texts();
    this.#shown = this.#ids.length;
    return Array.from(after).slice(Array.from(before).length).join("");
  }

  #texts() {
    return [this.#ids.slice(this.#context, this.#shown), this.#ids.slice(this.#context)].map(this.#decode);
  }
}
