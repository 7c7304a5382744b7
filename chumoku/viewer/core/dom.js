// Making elements. What comes from outside becomes text, never markup.
//
//   el("button", { class: "go", t: "stop", onclick: f }, child, …)      t: the name of its words, in either language
//   svg("path", { d: "M0 0" })                                          the same for pictures
import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...inside) {
  return dressed(document.createElement(tag), attributes, inside);
}

export function svg(tag, attributes = {}, ...inside) {
  return dressed(document.createElementNS(SVG, tag), attributes, inside);
}

/** A button that does one thing; `key` names its words. */
export function button(key, onclick, more = {}) {
  return el("button", { type: "button", t: key, onclick, ...more });
}

function dressed(made, attributes, inside) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "t") labeled(made, "data-t", value);
    else if (name.startsWith("t-")) labeled(made, "data-" + name, value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined));
  return made;
}

// How the words of an element are named in the page, and where they go.
const PLACES = {
  "data-t": "textContent",
  "data-t-label": "aria-label",
  "data-t-title": "title",
  "data-t-placeholder": "placeholder",
};

function labeled(element, attribute, key) {
  element.setAttribute(attribute, key);
  worded(element);
}

function worded(element) {
  for (const [attribute, place] of Object.entries(PLACES)) {
    const key = element.getAttribute(attribute);
    if (key === null) continue;
    if (place === "textContent") element.textContent = t(key);
    else element.setAttribute(place, t(key));
  }
}

/** Write all words below `root` again, in the language chosen now. */
export function reword(root = document) {
  for (const element of root.querySelectorAll(Object.keys(PLACES).map((name) => `[${name}]`).join())) worded(element);
}

/** A share as people read it: 0.034 → 3.4 %. What is no number stays visible as what it is. */
export function percent(share) {
  if (!Number.isFinite(Number(share))) return String(share);
  if (share === 0) return "0 %";
  return share < 0.0005 ? "<0.1 %" : (share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %";
}

/** A number with so many decimals; what is no number stays visible as what it is. */
export function figure(number, digits) {
  return Number.isFinite(Number(number)) ? Number(number).toFixed(digits).replace("-", "−") : String(number);
}

/** A token's text so that blanks and line ends can be seen. */
export function visible(text) {
  return text === "" ? "∅" : text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

/** Put the cursor into a field, but not where that would push a keyboard over half of the screen. */
export function invite(field) {
  if (matchMedia("(pointer: fine)").matches) field.focus({ preventScroll: true });
}

/** Call `work` once the calls have rested for `wait` ms; `.now()` at once, `.stop()` not at all. */
export function rested(work, wait) {
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
  later.now = () => {
    clearTimeout(timer);
    work();
  };
  later.stop = () => clearTimeout(timer);
  return later;
}
