// Formatting of numbers and formulas.
//
//   formatNumber(0.01234) → "0.0123"     formatNumber("NaN") → "NaN"
//   formula("a_j = softmax(s_j / √d)")   variables in italics, _x subscript, ^x superscript, {…} groups
import { el } from "./dom.js";

/** The server sends numbers, or the strings NaN, Infinity, -Infinity. */
export const toNumber = (value) => Number(value);

export function formatNumber(value, digits = 3) {
  const number = toNumber(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  const text = size >= 1e5 || size < 1e-3 ? number.toExponential(1) : String(Number(number.toPrecision(digits)));
  return text.replace("-", "−").replace("e+", "e");
}

export function formatInteger(number) {
  return Number(number).toLocaleString("en-US");
}

const WORD = /[A-Za-z]{2,}/y;

/** A formula as elements. */
export function formula(text) {
  const root = el("span", { class: "formula" });
  let at = 0;
  const group = () => {
    if (text[at] !== "{") return text[at++] ?? "";
    const end = text.indexOf("}", at);
    const inside = text.slice(at + 1, end);
    at = end + 1;
    return inside;
  };
  while (at < text.length) {
    const sign = text[at];
    WORD.lastIndex = at;
    const found = WORD.exec(text);
    if (sign === "_" || sign === "^") {
      at += 1;
      root.append(el(sign === "_" ? "sub" : "sup", {}, ...letters(group())));
    } else if (found) {
      root.append(el("span", { class: "word" }, found[0]));
      at += found[0].length;
    } else {
      root.append(...letters(sign));
      at += 1;
    }
  }
  return root;
}

/** Several formulas in a paragraph, with line breaks only between them. */
export function formulas(...texts) {
  return el("p", { class: "formulas" }, ...texts.flatMap((text) => [formula(text), " "]));
}

const letters = (text) => (/^[A-Za-z]$/.test(text) ? [el("var", {}, text)] : [text]);
