// The attention between a translation and its source: two rows of words, with lines between them.
//
//   alignment[t][s]      how much target word t attends to source word s; each row sums to 1
//   pointing at t        shades the source by row t; pointing at s shades the target by column s
import { el, percent, svg } from "../../core/dom.js";
import { tokenText } from "../../core/text.js";

const MIN_WEIGHT = 0.12; // weaker lines are not drawn, because they would hide the others
const LISTED = 3;
const OTHER = { source: "target", target: "source" };

export class Alignment {
  /** onPoint(side, place) is called when another word is pointed at; null: none. */
  constructor(t, onPoint) {
    this.t = t;
    this.onPoint = onPoint;
    this.weights = [];
    this.names = { source: [], target: [] }; // null: the end token, if the server sends no text for it
    this.at = null; // [side, place] that is pointed at
    this.pinned = null; // the same, after the pointer has left
    this.spots = null; // coordinates of the words
    this.rows = { source: row("tr_from"), target: row("tr_to") };
    this.lines = svg("svg", { class: "links", "aria-hidden": "true" });
    this.summary = el("p", { class: "told hint", role: "status" });
    this.stage = el("div", { class: "stage" }, this.rows.source, this.lines, this.rows.target);
    this.standIns = el("p", { class: "hint" });
    const heads = [el("h2", { t: "tr_looked" }), el("p", { class: "hint", t: "tr_looked_hint" }), this.standIns];
    this.root = el("section", { class: "card align" }, ...heads, this.stage, this.summary);
  }

  /** standIns = [{ name, word }]: the model reads a short name such as B2 instead of the word. */
  show(source, hypothesis, standIns = []) {
    this.nameStandIns(standIns);
    this.weights = (hypothesis.alignment ?? []).map((one) => one.map(Number));
    const withEnd = (tokens, length) => {
      const texts = tokens.map((token) => token.text);
      return texts.length < length ? [...texts, null] : texts;
    };
    this.names.source = withEnd(source, this.weights[0]?.length ?? 0);
    this.names.target = withEnd(hypothesis.tokens, this.weights.length);
    this.pinned = null;
    for (const side of ["source", "target"]) this.rows[side].lastChild.replaceChildren(...this.chips(side));
    this.root.hidden = this.weights.length === 0;
    this.measure();
    this.point(null, null);
  }

  /** A name has one word per sentence. */
  nameStandIns(standIns) {
    const words = (name) => standIns.filter((one) => one.name === name).map((one) => one.word).join(" / ");
    const names = [...new Set(standIns.map((one) => one.name))];
    this.standIns.textContent = names.map((name) => this.t("tr_stands_for", { name, words: words(name) })).join(" ");
    this.standIns.hidden = !names.length;
  }

  chips(side) {
    const tokens = this.names[side].map((name) => (name === null ? { special: true, startsWord: true } : tokenText(name)));
    const continues = (place) => place > 0 && !tokens[place].startsWord && !tokens[place - 1].special; // the word before it
    return tokens.map((token, place) => {
      const tied = place + 1 < tokens.length && continues(place + 1) && "tied";
      const kinds = ["chip", token.special && "special", continues(place) && "on", tied];
      const chip = el("button", {
        type: "button",
        class: kinds.filter(Boolean).join(" "),
        tabindex: place ? -1 : 0,
        onpointerenter: () => this.point(side, place),
        onpointerleave: () => this.point(...(this.pinned ?? [null, null])),
        onfocus: () => this.point(side, place),
        onclick: () => this.pin(side, place),
        onkeydown: (event) => this.moveFocus(event, side, place),
      });
      chip.textContent = this.name(side, place);
      return chip;
    });
  }

  name(side, place) {
    const name = this.names[side][place];
    return name === null ? this.t("tr_end") : tokenText(name).bare || "␣";
  }

  shares(side, place) {
    return side === "target" ? this.weights[place] ?? [] : this.weights.map((one) => one[place] ?? 0);
  }

  // ---- pointing ----
  pin(side, place) {
    const same = this.pinned && this.pinned[0] === side && this.pinned[1] === place;
    this.pinned = same ? null : [side, place];
    this.point(...(this.pinned ?? [null, null]));
  }

  /** Arrow keys move along a row, and across to the word with the largest weight. */
  moveFocus(event, side, place) {
    const here = [...this.rows[side].lastChild.children];
    const across = () => {
      const shares = this.shares(side, place);
      return this.rows[OTHER[side]].lastChild.children[shares.indexOf(Math.max(...shares))];
    };
    const next = {
      ArrowRight: () => here[place + 1],
      ArrowLeft: () => here[place - 1],
      Home: () => here[0],
      End: () => here.at(-1),
      ArrowUp: () => side === "target" && across(),
      ArrowDown: () => side === "source" && across(),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    next.focus();
  }

  point(side, place) {
    this.at = place === null ? null : [side, place];
    const shares = place === null ? [] : this.shares(side, place);
    const most = Math.max(0.25, ...shares.filter(Number.isFinite));
    for (const [name, where] of Object.entries(this.rows))
      [...where.lastChild.children].forEach((chip, at) => {
        const lit = place !== null && name !== side;
        chip.classList.toggle("at", place === at && name === side);
        chip.style.setProperty("--share", lit ? String((shares[at] || 0) / most) : "0");
      });
    this.summary.textContent = place === null ? "" : this.sentence(side, place, shares);
    this.draw();
    this.onPoint(side, place);
  }

  sentence(side, place, shares) {
    const best = shares.map((share, at) => [share, at]).sort((a, b) => b[0] - a[0]).slice(0, LISTED);
    const list = best.map(([share, at]) => `${this.name(OTHER[side], at)} ${percent(share)}`).join(" · ");
    return this.t(side === "target" ? "tr_looks_at" : "tr_seen_by", { word: this.name(side, place), list });
  }

  // ---- the lines ----
  /** Read the coordinates of the words; only when they or the page change, not while the pointer moves. */
  measure() {
    const box = this.stage.getBoundingClientRect();
    this.spots = null;
    if (!box.width) return;
    this.lines.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const feet = (where, edge) =>
      [...where.lastChild.children].map((chip) => {
        const own = chip.getBoundingClientRect();
        return [own.left + own.width / 2 - box.left, own[edge] - box.top];
      });
    this.spots = { source: feet(this.rows.source, "bottom"), target: feet(this.rows.target, "top") };
  }

  draw() {
    if (this.spots === null) return;
    const curves = [];
    const line = (at, over, least) => {
      const share = this.weights[at][over];
      const [to, from] = [this.spots.source[over], this.spots.target[at]];
      if (share >= least && to && from) curves.push(curve(to, from, share, this.at !== null));
    };
    const [side, place] = this.at ?? [];
    if (side === "target") this.weights[place]?.forEach((_, over) => line(place, over, MIN_WEIGHT / 3));
    else if (side === "source") this.weights.forEach((_, at) => line(at, place, MIN_WEIGHT / 3));
    else this.weights.forEach((shares, at) => shares.forEach((_, over) => line(at, over, MIN_WEIGHT)));
    this.lines.replaceChildren(...curves);
  }

  resize() {
    this.measure();
    this.draw();
  }
}

function row(key) {
  const chips = el("div", { class: "chips", role: "group", "t-label": key });
  return el("div", { class: "row" }, el("span", { class: "hint", t: key }), chips);
}

function curve([x1, y1], [x2, y2], share, strong) {
  const middle = (y1 + y2) / 2;
  const path = svg("path", { d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` });
  path.style.setProperty("stroke-width", String(1 + 3 * share));
  path.style.setProperty("opacity", String(strong ? 0.25 + 0.75 * share : 0.08 + 0.6 * share));
  return path;
}
