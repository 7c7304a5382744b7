// How much of a text is sent. The model reads `context` tokens, but only the server knows how many characters those are.
const CHARS_PER_TOKEN = 12; // an upper bound of the average
const LESS = 0.7; // of the previous attempt

/** How many of a text's characters are sent at the n-th attempt. */
export function maxChars(model, length, attempt) {
  return Math.floor(Math.min(length, CHARS_PER_TOKEN * model.context) * LESS ** attempt);
}
