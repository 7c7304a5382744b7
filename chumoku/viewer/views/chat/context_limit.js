// How much of a text is sent: a model reads `context` tokens, and how many letters those are is known once it is asked.
const LETTERS = 12; // more than these no tokenizer puts into its tokens on average
const LESS = 0.7;

/** How many letters of so many may go, at the n-th attempt. */
export function fits(model, letters, attempt) {
  return Math.floor(Math.min(letters, LETTERS * model.context) * LESS ** attempt);
}
