// Heads and feed-forwards switched off, and what the model says without them.
import { dropped } from "../../core/api.js";
import { bars } from "../../core/bars.js";
import { el, percent, rested } from "../../core/dom.js";
import { figure, numeric } from "../../core/figures.js";

const MOST = 64;

/** → { root, show(look, depths, given), redraw(), again(), stop() } */
export function makeOff(t, api) {
  const boards = el("div", { class: "off-boards" });
  const answer = el("div", { class: "off-answer", "aria-live": "polite" });
  const error = el("p", { class: "error", role: "alert" });
  const all = el("button", { type: "button", class: "quiet", t: "look_off_none", onclick: () => clear() });
  const heading = el("div", { class: "off-head" }, el("h2", { t: "look_off" }), all);
  const left = el("section", { class: "card" }, heading, el("p", { class: "hint", t: "look_off_say" }), boards);
  const root = el("div", { class: "off" }, left, el("section", { class: "card" }, el("h2", { t: "look_off_answer" }), answer, error));
  const off = new Map();
  let now = null; // { look, depths, given }
  let told = null; // what the model said without them
  let abort = null;
  let waiting = false; // for an answer that has not come

  function show(look, depths, given) {
    now = { look, depths, given };
    off.clear();
    error.textContent = "";
    answer.removeAttribute("aria-busy");
    lay();
    rest();
  }

  /** The same again, in the language chosen now; what is off stays off. */
  function redraw() {
    lay();
    if (told) draw();
    else rest();
  }

  function lay() {
    const { depths } = now;
    const made = [];
    if (depths.encoder) made.push(board("encoder", depths.encoder, depths.heads, false));
    if (depths.decoder) made.push(board("decoder", depths.decoder, depths.heads, false));
    if (depths.encoder && depths.decoder) made.push(board("decoder", depths.decoder, depths.heads, true));
    boards.replaceChildren(...made);
  }

  function rest() {
    told = null;
    answer.replaceChildren(el("p", { class: "said" }, now.look.said || "—"), el("p", { class: "hint", t: "look_off_wait" }));
  }

  function board(part, layers, heads, cross) {
    const table = el("table", { class: "off-table" });
    const names = Array.from({ length: heads }, (_, head) => el("th", { scope: "col", class: "numbers" }, String(head)));
    table.append(el("caption", { t: cross ? "map_kind_cross" : `map_kind_${part}` }));
    table.append(el("thead", {}, el("tr", {}, el("th", { scope: "col", t: "look_layer" }), ...names, cross ? null : el("th", { scope: "col" }, "FFN"))));
    const body = el("tbody");
    for (let layer = 0; layer < layers; layer++) {
      const one = (head) => toggle({ part, layer, head, ...(cross && { cross }) }, t("look_head_name", { layer, head }));
      const cells = Array.from({ length: heads }, (_, head) => el("td", {}, one(head)));
      if (!cross) cells.push(el("td", {}, toggle({ part, layer, feedforward: true }, t("look_feed_name", { layer }))));
      body.append(el("tr", {}, el("th", { scope: "row", class: "numbers" }, String(layer)), ...cells));
    }
    table.append(body);
    table.addEventListener("keydown", (event) => walk(event, table));
    return el("div", { class: "scroll" }, table);
  }

  function toggle(one, name) {
    const key = JSON.stringify(one);
    const flip = () => {
      if (off.has(key)) off.delete(key);
      else if (off.size < MOST) off.set(key, one);
      button.setAttribute("aria-pressed", String(off.has(key)));
      waiting = true;
      later();
    };
    const button = el("button", { type: "button", class: "switch", "aria-pressed": String(off.has(key)), "aria-label": name, title: name, onclick: flip });
    return button;
  }

  function clear() {
    off.clear();
    for (const button of boards.querySelectorAll("[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
    ask();
  }

  async function ask() {
    abort?.abort();
    error.textContent = "";
    waiting = off.size > 0;
    if (!waiting) {
      answer.removeAttribute("aria-busy");
      return rest();
    }
    const mine = (abort = new AbortController());
    answer.setAttribute("aria-busy", "true");
    try {
      told = await api.post("/v1/look/ablate", { ...now.given, off: [...off.values()] }, { signal: mine.signal });
      draw();
    } catch (failure) {
      if (dropped(failure)) return undefined;
      error.textContent = failure.message;
    }
    waiting = false;
    answer.removeAttribute("aria-busy");
    return undefined;
  }

  function draw() {
    const side = (key, one) =>
      el(
        "div",
        { class: "off-side" },
        el("h3", { t: key }),
        el("p", { class: "said" }, one.said || "—"),
        one.candidates.length ? bars(one.candidates.map(candidate)) : null,
      );
    const measure = t(told.measure === "bits" ? "look_off_bits" : "look_off_cosine", { change: figure(told.change) });
    const words = told.measure === "bits" && now.look.kind !== "encoder" ? shaded(told.places) : null;
    const pair = el("div", { class: "off-pair" }, side("look_before", told.before), side("look_after", told.after));
    answer.replaceChildren(pair, el("p", { class: "numbers" }, measure), ...(words ? [words] : []));
  }

  /** Each word that was said, the darker the more its chance moved. */
  function shaded(places) {
    const following = [...now.look.tokens.slice(1), now.look.then ? [now.look.then.id, now.look.then.text] : [0, "…"]];
    const most = Math.max(1e-9, ...places.map((one) => numeric(one.bits)).filter(Number.isFinite));
    const line = el("p", { class: "off-words" });
    for (const { place, bits } of places) {
      const word = el("span", { title: `${figure(bits)} bits` }, following[place]?.[1] ?? "…");
      word.style.setProperty("--share", String((numeric(bits) || 0) / most));
      line.append(word);
    }
    return el("div", {}, el("p", { class: "hint", t: "look_off_words" }), line);
  }

  const later = rested(ask, 150);
  return {
    root,
    show,
    redraw: () => now && redraw(),
    again: () => waiting && ask(),
    stop() {
      later.stop();
      abort?.abort();
    },
  };
}

function candidate({ text, probability }) {
  return { name: text, share: numeric(probability), told: percent(numeric(probability)), strong: true };
}

function walk(event, table) {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!move || !cell) return;
  event.preventDefault();
  const row = cell.parentElement.rowIndex + move[0];
  table.rows[row]?.cells[cell.cellIndex + move[1]]?.querySelector("button")?.focus();
}
