// Numbers of the whole pass: the entropy of each head, the norms of the residual stream, and the position vectors.
import { lineChart } from "../../core/charts.js";
import { el, formatFixed } from "../../core/dom.js";
import { formatNumber, toNumber } from "../../core/format.js";
import { fadeEdges } from "../../core/overflow.js";
import { stack } from "./vectors.js";

const KINDS = { x: "first", attention: "fourth", cross: "second", feedforward: "third" }; // part → color of its curve
const LOG_RATIO = 50; // largest norm / median norm, above which the axis is logarithmic

/** The number of the block after which the stream has passed `at` blocks; x₀ is the embedding. */
const blockName = (at) => (at ? String(at - 1) : "x₀");

/** → { root, show(look) }; openMap(key, layer, head) is called when a head's entropy is pressed. */
export function makeNumbers(t, openMap) {
  const entropies = el("div", { class: "side-by-side" });
  const streams = el("div", { class: "side-by-side" });
  const positions = el("div");
  const positionText = el("p", { class: "hint" });
  const section = (key, ...inside) => el("section", { class: "card" }, el("h2", { t: key }), ...inside);
  const root = el(
    "div",
    {},
    section("look_entropy", el("p", { class: "hint", t: "look_entropy_say" }), entropies),
    section("look_streams", el("p", { class: "hint", t: "look_streams_say" }), streams),
    section("look_positions", positionText, positions),
  );

  function show(look) {
    const most = Math.max(1e-9, ...Object.values(look.entropy).flat(2).map(toNumber).filter(Number.isFinite));
    entropies.replaceChildren(...Object.entries(look.entropy).map(([key, table]) => entropyTable(key, table, most)));
    streams.replaceChildren(...Object.entries(look.streams).map(([name, parts]) => streamChart(name, parts)));
    const { kind, rows, table } = look.positions;
    positionText.textContent = t(`look_positions_${kind}`);
    positions.replaceChildren(...(table ? [stack(rows, table, { label: positionText.textContent })] : []));
  }

  function entropyTable(key, table, most) {
    const cell = (bits, layer, head) => {
      const places = formatNumber(2 ** toNumber(bits), 2);
      const name = t("look_entropy_cell", { layer, head, places });
      const attributes = { type: "button", class: bits === "NaN" ? "nan" : null, title: name, "aria-label": `${name}, ${bits}` };
      const button = el("button", { ...attributes, onclick: () => openMap(key, layer, head) }, formatFixed(bits, 2));
      button.style.setProperty("--share", String((toNumber(bits) || 0) / most));
      return el("td", {}, button);
    };
    const heads = table[0].map((_, head) => el("th", { scope: "col" }, String(head)));
    const rows = table.map((line, layer) => el("tr", {}, el("th", { scope: "row" }, String(layer)), ...line.map((bits, head) => cell(bits, layer, head))));
    const caption = el("caption", { t: `map_kind_${key}` });
    const first = el("th", { scope: "col", t: "look_layer_head" });
    const body = el("table", { class: "entropy-table" }, caption, el("thead", {}, el("tr", {}, first, ...heads)), el("tbody", {}, ...rows));
    return fadeEdges(el("div", { class: "scroll" }, body));
  }

  function streamChart(name, parts) {
    const lines = Object.entries(parts).map(([part, layers]) => {
      const first = part === "x" ? 0 : 1; // the stream begins with the embedding
      const rows = layers.map((three, at) => [at + first, ...three.map(toNumber)]);
      const title = ([at, low, middle, high]) => `${t(`look_part_${part}`)} ${blockName(at)}: ${formatNumber(middle)} (${formatNumber(low)} – ${formatNumber(high)})`;
      const points = rows.map((row) => [row[0], row[2], title(row)]);
      return { points, band: rows.map(([at, low, , high]) => [at, low, high]), kind: KINDS[part], dots: true };
    });
    const medians = parts.x.map((three) => toNumber(three[1])).sort((a, b) => a - b);
    const largest = Math.max(...lines.flatMap((line) => line.band.map(([, , high]) => high)).filter(Number.isFinite));
    const log = largest > LOG_RATIO * medians[medians.length >> 1];
    const names = Object.keys(parts).map((part) => el("span", { class: `curve-name ${KINDS[part]}` }, `● ${t(`look_part_${part}`)}`));
    const caption = el("figcaption", {}, t(`look_kind_${name}`) + (log ? t("look_log") : ""), ...names);
    return el("figure", {}, caption, lineChart({ lines, log, width: 540, label: t("look_streams"), xName: t("look_layer"), xWhole: true, xLabel: blockName }));
  }

  return { root, show };
}
