// The elements of the view Translate.
import { el } from "../../core/dom.js";
import { tokenText } from "../../core/text.js";

const BEAMS = ["1", "2", "4", "8", "16"];

export function layout(stored) {
  const beam = el("select", {}, ...BEAMS.map((width) => el("option", { value: width }, width)));
  beam.value = BEAMS.includes(stored.beam.get()) ? stored.beam.get() : "4";
  const parts = {
    beam,
    source: el("textarea", { id: "tr-source", rows: 5, "t-placeholder": "tr_placeholder", spellcheck: "false" }),
    penalty: el("input", { type: "number", min: -10, max: 10, step: 0.1, "t-title": "tr_penalty_title" }),
    from: el("select", {}),
    into: el("select", {}),
    answer: el("div", { class: "answer", role: "region", "aria-live": "polite", "t-label": "tr_answer" }),
    error: el("p", { class: "error", role: "alert" }),
    cut: el("p", { class: "cut", role: "status" }),
    examples: el("div", { class: "examples" }),
    clear: el("button", { type: "button", class: "quiet", t: "tr_clear" }),
    copy: el("button", { type: "button", class: "quiet", t: "tr_copy", disabled: true }),
    now: el("button", { type: "button", class: "go", t: "tr_now", title: "Ctrl + Enter" }),
    others: el("section", { class: "card others" }),
    treeBox: el("details", { class: "card tree" }, el("summary", {}, el("h2", { t: "tr_tree" }))),
    below: el("div", { class: "below", hidden: true }),
  };
  parts.source.value = stored.text.get();
  parts.penalty.value = stored.penalty.get();
  const pair = el("div", { class: "pair" }, left(parts), right(parts));
  parts.root = el("div", { class: "translate" }, controls(parts), pair, parts.below);
  return parts;
}

function left({ source, examples, clear, cut, error }) {
  const title = el("label", { for: "tr-source" }, el("h2", { t: "tr_source" }));
  return el("section", { class: "card" }, el("div", { class: "head" }, title, clear), source, examples, cut, error);
}

function right({ answer, copy }) {
  return el("section", { class: "card" }, el("div", { class: "head" }, el("h2", { t: "tr_answer" }), copy), answer);
}

function controls({ from, into, beam, penalty, now }) {
  const labeled = (key, field) => el("label", {}, el("span", { t: key }), field);
  const languages = [labeled("tr_from_language", from), labeled("tr_into", into)];
  return el("div", { class: "controls" }, ...languages, labeled("tr_beam", beam), labeled("tr_penalty", penalty), now);
}

/** The tokens of a translation as spans, or its text alone if the tokens do not add up to it. */
export function wordSpans({ text, tokens }, standIns = []) {
  const spans = [];
  const names = tokens.map((token) => tokenText(token.text));
  let end = 0; // of the spans, in the text
  for (let place = 0; place < tokens.length && end < text.length; place++) {
    const blank = /^\s*/.exec(text.slice(end))[0];
    const kept = findStandIn(names.slice(place), text.slice(end + blank.length), standIns);
    const word = kept?.word ?? names[place].spaced.trim();
    if (!text.startsWith(word, end + blank.length)) {
      if (names[place].special) continue; // the end of a sentence is not in the text
      return [text];
    }
    if (!word) continue;
    if (blank) spans.push(blank);
    spans.push(el("span", { "data-place": String(place) }, word));
    end += blank.length + word.length;
    place += (kept?.length ?? 1) - 1;
  }
  return [...spans, text.slice(end)];
}

/** The word that the text starts with if the tokens start with its stand-in, and how many tokens that is. */
function findStandIn(names, text, standIns) {
  for (const { name, word } of standIns) {
    let read = "";
    let length = 0;
    while (length < names.length && read.length < name.length) read += names[length++].bare;
    if (read === name && text.startsWith(word)) return { word, length };
  }
  return null;
}
