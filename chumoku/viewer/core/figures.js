// Figures as people read them, and formulas as notes write them.
//
//   figure(0.01234) → "0.0123"     figure("NaN") → "NaN"
//   formula("a_j = softmax(s_j / √d)")   letters in italics, _x and ^x below and above, {…} around more than one
import { el } from "./dom.js";

/** Numbers come as numbers, or as the words NaN, Infinity, -Infinity. */
export const numeric = (value) => Number(value);

export function figure(value, digits = 3) {
  const number = numeric(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  const text = size >= 1e5 || size < 1e-3 ? number.toExponential(1) : String(Number(number.toPrecision(digits)));
  return text.replace("-", "−").replace("e+", "e");
}

export function whole(number) {
  return Number(number).toLocaleString("en-US");
}

const WORD = /[A-Za-z]{2,}/y;

/** A formula as elements: no markup is made of text. */
export function formula(text) {
  const line = el("span", { class: "formula" });
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
      line.append(el(sign === "_" ? "sub" : "sup", {}, ...letters(group())));
    } else if (found) {
      line.append(el("span", { class: "word" }, found[0]));
      at += found[0].length;
    } else {
      line.append(...letters(sign));
      at += 1;
    }
  }
  return line;
}

/** Several formulas in a line; where it breaks, it breaks between them. */
export function formulas(...texts) {
  return el("p", { class: "formulas" }, ...texts.flatMap((text) => [formula(text), " "]));
}

const letters = (text) => (/^[A-Za-z]$/.test(text) ? [el("var", {}, text)] : [text]);
