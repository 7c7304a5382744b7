// Creating elements. Untrusted data becomes text, never markup.
//
//   el("button", { class: "go", t: "stop", onclick: f }, child, …)      t: the key of its text in `strings`
//   svg("path", { d: "M0 0" })                                          the same for SVG
import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

/** A button; `key` is the key of its text. */
export function button(key, onclick, more = {}) {
  return el("button", { type: "button", t: key, onclick, ...more });
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "t") setText(element, "data-t", value);
    else if (name.startsWith("t-")) setText(element, "data-" + name, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((one) => one !== null && one !== undefined));
  return element;
}

// Attributes with a text key, and where the text goes.
const TEXT_TARGETS = {
  "data-t": "textContent",
  "data-t-label": "aria-label",
  "data-t-title": "title",
  "data-t-placeholder": "placeholder",
};

function setText(element, attribute, key) {
  element.setAttribute(attribute, key);
  updateText(element);
}

function updateText(element) {
  for (const [attribute, target] of Object.entries(TEXT_TARGETS)) {
    const key = element.getAttribute(attribute);
    if (key === null) continue;
    if (target === "textContent") element.replaceChildren(...withCode(t(key)));
    else element.setAttribute(target, t(key));
  }
}

/** The parts of a text of this page; a command in `backticks` becomes code. */
function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
}

/** Update all texts below `root` to the current language. */
export function updateTexts(root = document) {
  for (const element of root.querySelectorAll(Object.keys(TEXT_TARGETS).map((name) => `[${name}]`).join())) updateText(element);
}

/** A share in percent: 0.034 → 3.4 %. NaN and infinity are shown as such. */
export function percent(share) {
  if (!Number.isFinite(Number(share))) return String(share);
  if (share === 0) return "0 %";
  return share < 0.0005 ? "<0.1 %" : (share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %";
}

/** A number with this many decimals. NaN and infinity are shown as such. */
export function formatFixed(number, digits) {
  return Number.isFinite(Number(number)) ? Number(number).toFixed(digits).replace("-", "−") : String(number);
}

/** A token's text with visible spaces and line ends. */
export function showWhitespace(text) {
  return text === "" ? "∅" : text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

/** Focus a field, but not on touch screens, where a keyboard would cover half of the screen. */
export function focusWithoutKeyboard(field) {
  if (matchMedia("(pointer: fine)").matches) field.focus({ preventScroll: true });
}

/** A function that calls `work` after `wait` ms without further calls; `.now()` calls it at once, `.stop()` cancels. */
export function debounce(work, wait) {
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
