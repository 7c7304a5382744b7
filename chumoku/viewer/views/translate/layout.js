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

function controls({ into, beam, penalty, now }) {
  const labeled = (key, field) => el("label", {}, el("span", { t: key }), field);
  const fields = [labeled("tr_into", into), labeled("tr_beam", beam), labeled("tr_penalty", penalty)];
  return el("div", { class: "controls" }, ...fields, now);
}

/** The tokens of a translation as spans, or its text alone if the tokens do not add up to it. */
export function wordSpans(hypothesis) {
  const complete = hypothesis.text.trim();
  const spans = [];
  let text = "";
  for (const [at, token] of hypothesis.tokens.entries()) {
    if (text === complete) break; // only the end token follows
    const { spaced } = tokenText(token.text);
    const more = text ? spaced : spaced.trimStart();
    text += more;
    const [, blank, word] = /^(\s*)(.*)$/s.exec(more);
    if (blank) spans.push(blank);
    if (word) spans.push(el("span", { "data-place": String(at) }, word));
  }
  return text.trim() === complete ? spans : [hypothesis.text];
}
