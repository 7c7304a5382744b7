// Bars that lie: a name, a share of the width, a figure. Used wherever chances are shown.
import { el } from "./dom.js";

/** rows = [{ name, share (0…1), told, strong?, faint?, rest? }] */
export function bars(rows) {
  return el("div", { class: "bars", role: "list" }, ...rows.map(bar));
}

function bar({ name, share, told, strong, faint, rest }) {
  const fill = el("span", { class: "fill" });
  fill.style.setProperty("width", `${100 * Math.min(1, Math.max(0, share || 0))}%`);
  const kind = ["bar", strong && "strong", faint && "faint", rest && "rest"].filter(Boolean).join(" ");
  return el(
    "div",
    { class: kind, role: "listitem" },
    el("span", { class: "name", title: name }, name),
    el("span", { class: "track", "aria-hidden": "true" }, fill),
    el("span", { class: "figure numbers" }, told),
  );
}
