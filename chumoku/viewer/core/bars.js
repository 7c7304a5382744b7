// Horizontal bars: a name, a bar, and a label. Used for probabilities.
import { el } from "./dom.js";

/** rows = [{ name, share (0…1), label, strong?, faint?, rest? }] */
export function bars(rows) {
  return el("div", { class: "bars", role: "list" }, ...rows.map(bar));
}

function bar({ name, share, label, strong, faint, rest }) {
  const fill = el("span", { class: "fill" });
  fill.style.setProperty("width", `${100 * Math.min(1, Math.max(0, share || 0))}%`);
  const kind = ["bar", strong && "strong", faint && "faint", rest && "rest"].filter(Boolean).join(" ");
  return el(
    "div",
    { class: kind, role: "listitem" },
    el("span", { class: "name", title: name }, name),
    el("span", { class: "track", "aria-hidden": "true" }, fill),
    el("span", { class: "figure numbers" }, label),
  );
}
