// Characters as Python's str methods and regular expressions see them, for code that must agree with the Python package.
//
//   \s, str.isspace    \t … \r, U+001C … U+001F, U+0085 and the spaces: not JavaScript's \s, which has U+FEFF instead
//   \w, str.isalnum    letters and numbers
//   str.isdigit        decimal digits, and digits such as ² and ① that are not decimal

/** Whitespace, for use inside the brackets of a regular expression. */
export const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
/** Letters and numbers, for use inside the brackets of a regular expression with the flag u. */
export const ALPHANUMERIC = "\\p{L}\\p{N}";
const OTHER_DIGITS =
  "\\xb2\\xb3\\xb9\\u1369-\\u1371\\u19da\\u2070\\u2074-\\u2079\\u2080-\\u2089\\u2460-\\u2468\\u2474-\\u247c" +
  "\\u2488-\\u2490\\u24ea\\u24f5-\\u24fd\\u24ff\\u2776-\\u277e\\u2780-\\u2788\\u278a-\\u2792" +
  "\\u{10a40}-\\u{10a43}\\u{10e60}-\\u{10e68}\\u{11052}-\\u{1105a}\\u{1f100}-\\u{1f10a}";
const SPACE = new RegExp(`^[${SPACES}]+$`);
const DIGITS = new RegExp(`^[\\p{Nd}${OTHER_DIGITS}]+$`, "u");
const LETTER_OR_NUMBER = new RegExp(`^[${ALPHANUMERIC}]+$`, "u");
const LOWER = /^\p{Lowercase}$/u;

export const isSpace = (text) => SPACE.test(text);
export const isDigit = (text) => DIGITS.test(text);
export const isAlphanumeric = (text) => LETTER_OR_NUMBER.test(text);
export const isLowerCharacter = (character) => LOWER.test(character);

const FIRST_SPACES = new RegExp(`^[${SPACES}]+`);

/** The text without the whitespace at its start. */
export function trimStart(text) {
  return text.replace(FIRST_SPACES, "");
}

/** The text without the whitespace at its end. */
export function trimEnd(text) {
  let end = text.length;
  while (end > 0 && isSpace(text[end - 1])) end -= 1;
  return text.slice(0, end);
}

/** The character (one code point) that begins at an index, or "" at the end of the text. */
export function characterAt(text, index) {
  return index >= 0 && index < text.length ? String.fromCodePoint(text.codePointAt(index)) : "";
}

/** Replace each unpaired surrogate by �, as Python's `fix_surrogates`. */
export function fixSurrogates(text) {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}
