"use strict";
// The page of a snapshot. All data comes from the JSON block; token names become text, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
let language = (navigator.language || "en").startsWith("ja") ? "ja" : "en";
const t = (en, ja) => (language === "ja" ? ja : en);
function percent(share) {
  if (share === 0) return "0 %";
  return share < 0.0005 ? "<0.1 %" : (share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %";
}
const MEAN = -1;

const MAPS = {
  encoder: ["Encoder: self-attention", "エンコーダの自己アテンション"],
  decoder: ["Decoder: masked self-attention", "デコーダのマスク付き自己アテンション"],
  cross: ["Cross-attention: target → source", "クロスアテンション：訳文 → 原文"],
  "rollout-encoder": ["Rollout of the encoder", "エンコーダのロールアウト"],
  rollout: ["Rollout of the decoder", "デコーダのロールアウト"],
  "rollout-cross": ["Rollout: target → source", "ロールアウト：訳文 → 原文"],
};
const KINDS = {
  encoder: ["encoder", "エンコーダ"],
  decoder: ["decoder", "デコーダ"],
  "encoder-decoder": ["encoder-decoder", "エンコーダ・デコーダ"],
};
const PARTS = {
  x: ["stream", "ストリーム"],
  attention: ["attention adds", "アテンション"],
  cross: ["cross-attention adds", "クロスアテンション"],
  feedforward: ["feed-forward adds", "フィードフォワード"],
};
const POSITIONS = {
  sinusoidal: ["Sinusoidal: the vector that is added at each position (row).", "正弦波：各位置（行）の埋め込みに足されるベクトルです。"],
  learned: ["Learned: the vector that is added at each position (row).", "学習型：各位置（行）の埋め込みに足されるベクトルです。"],
  rotary: ["Rotary: the cosine of the angle by which each plane (column) is rotated at each position (row).", "回転（RoPE）：各位置（行）で各平面（列）を回転させる角度の余弦です。"],
  relative: ["Relative: the vector of each distance (row), whose product with the query is added to the score; from the first block.", "相対位置：各距離（行）のベクトルです。クエリとの内積がスコアに足されます。最初のブロックの値です。"],
  alibi: ["ALiBi: the bias that each head (column) adds to the score of each distance (row).", "ALiBi：各ヘッド（列）が各距離（行）のスコアに足すバイアスです。"],
  none: ["This model uses no position information.", "このモデルは位置の情報を使いません。"],
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// ---- colors ----
const themeColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mix = (from, to, share) => from.map((one, at) => Math.round(one + (to[at] - one) * Math.min(1, Math.max(0, share))));
const shade = (share, to = "--accent") => `rgb(${mix(rgb(themeColor("--card")), rgb(themeColor(to)), share)})`;
function textColor(share, to = "--accent") {
  const [r, g, b] = mix(rgb(themeColor("--card")), rgb(themeColor(to)), share);
  return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#16202a" : "#ffffff";
}

// ---- maps ----
for (const map of data.maps) {
  const bytes = Uint8Array.from(atob(map.weights), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  map.weights = Float32Array.from({ length: bytes.length / 2 }, (_, at) => view.getUint16(2 * at, true) / 65535);
}
function weightsOf(map, layer, head) {
  const size = map.rows.length * map.columns.length;
  const mean = new Float32Array(size);
  const layers = layer === MEAN ? [...Array(map.layers).keys()] : [layer];
  const heads = head === MEAN ? [...Array(map.heads).keys()] : [head];
  for (const l of layers)
    for (const h of heads) {
      const from = (l * map.heads + h) * size;
      for (let at = 0; at < size; at++) mean[at] += map.weights[from + at] / (layers.length * heads.length);
    }
  return mean;
}
const first = data.maps.findIndex((map) => map.key === "cross");
const state = { map: Math.max(0, first), layer: MEAN, head: MEAN, row: 0, column: 0, root: false };
state.root = data.maps[state.map].columns.length > 24;
const scaled = (share) => (state.root ? Math.sqrt(share) : share);

function fillPickers() {
  const option = (value, text) => make("option", { value }, text);
  const map = data.maps[state.map];
  $("pick-map").replaceChildren(...data.maps.map((one, at) => option(at, t(...MAPS[one.key]))));
  const numbers = (many, mean) => [
    ...(many > 1 ? [option(MEAN, mean)] : []),
    ...[...Array(many).keys()].map((at) => option(at, String(at))),
  ];
  $("pick-layer").replaceChildren(...numbers(map.layers, t("mean of all", "全層の平均")));
  $("pick-head").replaceChildren(...numbers(map.heads, t("mean of all", "全ヘッドの平均")));
  if (map.layers === 1) state.layer = 0;
  if (map.heads === 1) state.head = 0;
  $("pick-map").value = state.map;
  $("pick-layer").value = state.layer;
  $("pick-head").value = state.head;
  $("pick-root").checked = state.root;
}

let cells = null; // the position and size of the large map's cells
function drawMap() {
  const map = data.maps[state.map], canvas = $("map"), ratio = window.devicePixelRatio || 1;
  const weights = weightsOf(map, state.layer, state.head), rows = map.rows.length, columns = map.columns.length;
  state.row = Math.min(state.row, rows - 1);
  state.column = Math.min(state.column, columns - 1);
  const context = canvas.getContext("2d");
  const font = (size) => `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.font = font(13);
  const wide = (names) => Math.min(130, Math.max(...names.map((name) => context.measureText(name).width)));
  const left = wide(map.rows) + 12, top = wide(map.columns) + 12, room = canvas.parentElement.clientWidth - 4;
  const cell = Math.floor(Math.min(38, Math.max(rows > 40 ? 11 : 19, (room - left) / columns)));
  const width = left + cell * columns + 2, height = top + cell * rows + 2;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  let most = 1e-9;
  for (const weight of weights) most = Math.max(most, weight);
  const from = rgb(themeColor("--card")), to = rgb(themeColor("--accent")), gap = cell > 13 ? 1 : 0;
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      context.fillStyle = `rgb(${mix(from, to, scaled(weights[row * columns + column] / most))})`;
      context.fillRect(left + column * cell, top + row * cell, cell - gap, cell - gap);
    }
  context.strokeStyle = themeColor("--line");
  context.strokeRect(left - 0.5, top - 0.5, columns * cell + 1, rows * cell + 1);
  context.font = font(Math.min(13, cell - 1));
  context.textBaseline = "middle";
  const setNameColor = (at, selected) => { context.fillStyle = at === selected ? themeColor("--warm") : themeColor("--ink"); };
  context.textAlign = "right";
  map.rows.forEach((text, row) => { setNameColor(row, state.row); context.fillText(text, left - 6, top + (row + 0.5) * cell, 130); });
  context.textAlign = "left";
  const upright = map.columns.every((text) => context.measureText(text).width < cell - 2);
  map.columns.forEach((text, column) => {
    setNameColor(column, state.column);
    context.save();
    const fits = context.measureText(text).width < cell - 2;
    const short = fits && (upright || /[\u3000-\u9fff\uff00-\uffef]/.test(text)); // wide characters such as 食 stay upright
    context.translate(left + (column + 0.5) * cell, short ? top - 11 : top - 6);
    if (short) context.textAlign = "center";
    else context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0, 130);
    context.restore();
  });
  context.strokeStyle = themeColor("--warm");
  context.lineWidth = 2;
  context.strokeRect(left + state.column * cell, top + state.row * cell, cell - gap, cell - gap);
  context.lineWidth = 1;
  cells = { left, top, cell, rows, columns, weights };
  showCell();
}
function showCell() {
  const map = data.maps[state.map], { weights, columns } = cells;
  const row = Array.from(weights.slice(state.row * columns, (state.row + 1) * columns));
  const weight = row[state.column], rank = 1 + row.filter((other) => other > weight).length;
  const best = row.map((share, at) => [share, at]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const pair = `${map.rows[state.row]} → ${map.columns[state.column]}: `;
  const places = best.map(([share, at]) => `${map.columns[at]} ${percent(share)}`).join(", ");
  $("cell").replaceChildren(
    pair, make("b", {}, percent(weight)), " · ", t(`rank ${rank} of ${columns} in its row`, `この行の ${columns} 個中 ${rank} 位`),
    make("br"), t("largest weights of this row: ", "この行で重みが大きいもの：") + places);
  $("map").setAttribute("aria-label", t(...MAPS[map.key]) + " · " + $("cell").textContent);
}
function move(row, column) {
  state.row = Math.min(cells.rows - 1, Math.max(0, row));
  state.column = Math.min(cells.columns - 1, Math.max(0, column));
  drawMap();
}
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
$("map").addEventListener("keydown", (event) => {
  if (!STEPS[event.key]) return;
  event.preventDefault();
  move(state.row + STEPS[event.key][0], state.column + STEPS[event.key][1]);
});
for (const kind of ["pointermove", "pointerdown"])
  $("map").addEventListener(kind, (event) => {
    const box = $("map").getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - cells.left) / cells.cell);
    const row = Math.floor((event.clientY - box.top - cells.top) / cells.cell);
    const inside = row >= 0 && column >= 0 && row < cells.rows && column < cells.columns;
    if (inside && (row !== state.row || column !== state.column)) move(row, column);
  });

function drawGrid() {
  const map = data.maps[state.map], grid = $("grid"), rows = map.rows.length, columns = map.columns.length;
  const single = map.layers * map.heads === 1;
  grid.hidden = $("grid-title").hidden = single;
  if (single) return grid.replaceChildren();
  const width = Math.max(34, Math.min(110, 900 / map.heads)), height = Math.min(140, Math.max(28, (width * rows) / columns));
  grid.style.gridTemplateColumns = `auto repeat(${map.heads}, ${width}px)`;
  const items = [make("span", {}), ...[...Array(map.heads).keys()].map((head) => make("span", {}, String(head)))];
  for (let layer = 0; layer < map.layers; layer++) {
    items.push(make("span", {}, String(layer)));
    for (let head = 0; head < map.heads; head++) {
      const button = headButton(map, layer, head);
      button.style.height = height + "px";
      items.push(button);
    }
  }
  grid.replaceChildren(...items);
}
function headButton(map, layer, head) {
  const selected = state.layer === layer && state.head === head;
  const onclick = () => {
    Object.assign(state, selected ? { layer: MEAN, head: MEAN } : { layer, head });
    drawAttention();
    $("grid").querySelectorAll("button")[layer * map.heads + head].focus({ preventScroll: true });
  };
  const label = t(`layer ${layer}, head ${head}`, `層 ${layer}・ヘッド ${head}`);
  return make("button", { type: "button", "aria-pressed": String(selected), "aria-label": label, onclick }, smallMap(map, layer, head));
}
function smallMap(map, layer, head) {
  const rows = map.rows.length, columns = map.columns.length, start = (layer * map.heads + head) * rows * columns;
  const canvas = make("canvas", { width: columns, height: rows }), context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows), from = rgb(themeColor("--card")), to = rgb(themeColor("--accent"));
  for (let at = 0; at < rows * columns; at++) {
    image.data.set(mix(from, to, scaled(map.weights[start + at])), 4 * at);
    image.data[4 * at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
function selectLargest() {
  const map = data.maps[state.map], weights = weightsOf(map, state.layer, state.head);
  const best = weights.reduce((most, weight, at) => (weight > weights[most] ? at : most), 0);
  Object.assign(state, { row: Math.floor(best / map.columns.length), column: best % map.columns.length });
}
function drawAttention() { fillPickers(); drawMap(); drawGrid(); }
$("pick-map").addEventListener("change", (event) => {
  Object.assign(state, { map: Number(event.target.value), layer: MEAN, head: MEAN });
  fillPickers();
  selectLargest();
  drawAttention();
});
$("pick-layer").addEventListener("change", (event) => { state.layer = Number(event.target.value); drawMap(); drawGrid(); });
$("pick-head").addEventListener("change", (event) => { state.head = Number(event.target.value); drawMap(); drawGrid(); });
$("pick-root").addEventListener("change", (event) => { state.root = event.target.checked; drawMap(); drawGrid(); });
