// A table of numbers, shaded by their size.
import { el, formatFixed } from "../../chumoku/viewer/core/dom.js";

/** cells: rows of numbers, or of null where nothing can be seen; `full`: the size with full shade; `sums`: a column that should be 1. */
export function matrix(cells, { rows = [], columns = [], digits = 2, full = 1, sums = null, at = null }) {
  const head = columns.length ? el("thead", {}, el("tr", {}, rows.length ? el("th") : null, ...columns.map((name) => el("th", {}, name)))) : null;
  const body = cells.map((line, number) =>
    el(
      "tr",
      { class: number === at ? "at" : null },
      rows.length ? el("th", {}, rows[number]) : null,
      ...line.map((value) => cell(value, digits, full)),
      sums ? el("td", { class: `sum${isWrong(sums[number]) ? " wrong" : ""}` }, formatFixed(sums[number], digits)) : null,
    ),
  );
  return el("div", { class: "scroll" }, el("table", { class: "matrix numbers" }, head, el("tbody", {}, ...body)));
}

function cell(value, digits, full) {
  if (value === null) return el("td", { class: "hidden-cell" }, "–");
  const made = el("td", { class: value < 0 ? "negative" : null }, formatFixed(value, digits));
  made.style.setProperty("--share", String(Math.min(1, Math.abs(value) / full)));
  return made;
}

/** Whether a sum of weights is wrong: neither 1, nor 0 where nothing is seen. */
const isWrong = (sum) => sum !== 0 && Math.abs(sum - 1) > 1e-4;
