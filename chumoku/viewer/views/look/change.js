// What changed after an edit of the model: candidates side by side, and how much each prediction changed.
import { bars } from "../../core/bars.js";
import { el, percent } from "../../core/dom.js";
import { formatNumber, toNumber } from "../../core/format.js";

const MAX_CHOSEN = 64; // values of one request

/** columns = [{ title: key, output: text or undefined, candidates }] */
export function sides(columns) {
  const column = ({ title, output, candidates }) =>
    el(
      "div",
      { class: "off-side" },
      el("h3", { t: title }),
      output === undefined ? null : el("p", { class: "output" }, output || "—"),
      candidates.length ? bars(candidates.map(candidateBar)) : null,
    );
  return el("div", { class: `off-pair${columns.length > 2 ? " three" : ""}` }, ...columns.map(column));
}

function candidateBar({ text, probability }) {
  return { name: text, share: toNumber(probability), label: percent(toNumber(probability)), strong: true };
}

/** The mean change in words, and the generated tokens; darker ones changed more. */
export function describeChange(t, { measure, change, places }, look) {
  const bits = measure === "bits";
  const sentence = t(bits ? "look_off_bits" : "look_off_cosine", { change: formatNumber(change) });
  const tokens = bits && look.kind !== "encoder" ? [shadedTokens(places, look)] : [];
  return [el("p", { class: "numbers" }, sentence), ...tokens];
}

function shadedTokens(places, { tokens, then }) {
  const following = [...tokens.slice(1), then ? [then.id, then.text] : [0, "…"]];
  const largest = Math.max(1e-9, ...places.map((one) => toNumber(one.bits)).filter(Number.isFinite));
  const spans = places.map(({ place, bits }) => {
    const span = el("span", { title: `${formatNumber(bits)} bits` }, following[place]?.[1] ?? "…");
    span.style.setProperty("--share", String((toNumber(bits) || 0) / largest));
    return span;
  });
  return el("div", {}, el("p", { class: "hint", t: "look_off_words" }), el("p", { class: "off-words" }, ...spans));
}

/** Move the focus between the buttons of a table with the arrow keys. */
export function moveFocus(event, table) {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!move || !cell) return;
  event.preventDefault();
  const row = cell.parentElement.rowIndex + move[0];
  table.rows[row]?.cells[cell.cellIndex + move[1]]?.querySelector("button")?.focus();
}

/** A button that adds a value to `chosen` (its JSON → the value) or removes it, and then calls `onChange`. */
export function toggleButton(chosen, value, attributes, onChange) {
  const key = JSON.stringify(value);
  const onclick = () => {
    if (chosen.has(key)) chosen.delete(key);
    else if (chosen.size < MAX_CHOSEN) chosen.set(key, value);
    button.setAttribute("aria-pressed", String(chosen.has(key)));
    onChange();
  };
  const button = el("button", { type: "button", ...attributes, "aria-pressed": String(chosen.has(key)), onclick });
  return button;
}
