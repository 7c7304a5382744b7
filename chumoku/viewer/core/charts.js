// Line charts in SVG.
//
//   lineChart({ lines: [{ name, points: [[x, y, title?] …], kind, band?: [[x, low, high] …] }], log, width, height, label })
//
// Where y is NaN, the line is interrupted and a cross is drawn at the bottom; a point without neighbors is a dot.
// `log`: a logarithmic y axis. `xWhole`: only whole numbers on the x axis. `xLabel`: the text of a tick there.
import { svg } from "./dom.js";
import { formatNumber } from "./format.js";

const LEFT = 52;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 38;

export function lineChart({ lines, log = false, width = 640, height = 300, label = "", xs = null, ys = null, xName = "", xWhole = false, xLabel = (value) => formatNumber(value, 4), marks = [] }) {
  const ends = ({ points, band = [] }) => [...points, ...band, ...band.map(([at, , top]) => [at, top])];
  const finite = lines.flatMap(ends).filter(([, y]) => Number.isFinite(y) && (!log || y > 0));
  const [left, right] = xs ?? range(finite.map(([x]) => x));
  const [low, high] = ys ?? addMargin(range(finite.map(([, y]) => y)), log);
  const scaleY = log ? Math.log10 : (y) => y;
  const x = (value) => LEFT + ((value - left) / (right - left || 1)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((scaleY(value) - scaleY(low)) / (scaleY(high) - scaleY(low) || 1)) * (height - BOTTOM - TOP);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curves", role: "img", "aria-label": label });
  for (const value of log ? decades(low, high) : ticks(low, high, 7)) {
    chart.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "rule" }));
    chart.append(svg("text", { x: LEFT - 7, y: y(value) + 4, class: "tick end" }, formatNumber(value)));
  }
  const count = width < 480 ? 4 : 7;
  for (const value of ticks(left, right, xWhole ? Math.min(count, right - left) : count))
    chart.append(svg("text", { x: x(value), y: height - BOTTOM + 17, class: "tick middle" }, xLabel(value)));
  if (xName) chart.append(svg("text", { x: width - RIGHT, y: height - 1, class: "tick end" }, xName));
  for (const value of marks) chart.append(svg("line", { x1: x(value), x2: x(value), y1: TOP, y2: height - BOTTOM, class: "mark" }));
  for (const line of lines) chart.append(...drawLine(line, x, y, { log, bottom: height - BOTTOM }));
  chart.valueAt = (px) => left + ((px - LEFT) / (width - LEFT - RIGHT)) * (right - left);
  return chart;
}

function drawLine({ points, kind = "first", dots = false, band = [] }, x, y, { log, bottom }) {
  let path = "";
  let open = false;
  const nans = [];
  const dotsDrawn = [];
  const drawable = (point) => point !== undefined && Number.isFinite(point[1]) && (!log || point[1] > 0);
  for (const [number, [at, value, title]] of points.entries()) {
    if (!drawable(points[number])) {
      if (!Number.isFinite(value)) nans.push(at);
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
    const alone = !drawable(points[number - 1]) && !drawable(points[number + 1]);
    if (dots || alone) dotsDrawn.push(svg("circle", { cx: x(at), cy: y(value), r: 3, class: "dot " + kind }, title ? svg("title", {}, title) : null));
  }
  const edges = band.filter(([, low, top]) => drawable([0, low]) && drawable([0, top]));
  const outline = [...edges.map(([at, low]) => [at, low]), ...edges.map(([at, , top]) => [at, top]).reverse()];
  const area = `M${outline.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}Z`;
  const marks = nans.slice(0, 200).map((at) => svg("path", { d: `M${x(at) - 3} ${bottom - 7}l6 6m0 -6l-6 6`, class: "odd" }, svg("title", {}, "NaN")));
  const bands = edges.length ? [svg("path", { d: area, class: "band " + kind })] : [];
  return [...bands, svg("path", { d: path, class: "curve " + kind }), ...dotsDrawn, ...marks];
}

/** [minimum, maximum]; [0, 1] of no values. */
function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : low === high ? [low, low + 1] : [low, high];
}

function addMargin([low, high], log) {
  if (log) return low > 0 ? [low / 1.15, high * 1.15] : [0.1, 1];
  const margin = (high - low) * 0.06;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/** About `about` round numbers from low to high. */
export function ticks(low, high, about = 5) {
  const raw = (high - low) / about;
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const one of [1, 2, 5]) if (one * 10 ** power >= low && one * 10 ** power <= high) found.push(one * 10 ** power);
  return found.length > 8 ? found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : found;
}
