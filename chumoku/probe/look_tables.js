// ---- summary ----
function drawSummary() {
  document.title = "chumoku look · " + data.text.slice(0, 40);
  const facts = [data.model, t(...KINDS[data.kind])];
  for (const map of data.maps.filter((one) => !one.key.startsWith("rollout") && one.key !== "cross"))
    facts.push(`${t(...KINDS[map.key])}: ${map.layers} ${t(map.layers > 1 ? "layers" : "layer", "層")} × ${map.heads} ${t(map.heads > 1 ? "heads" : "head", "ヘッド")}`);
  $("facts").textContent = facts.join(" · ");
  $("text").textContent = data.text;
  $("said").textContent = data.said ? "→ " + data.said : "";
  $("notices").replaceChildren(...data.notices.map((pair) => make("p", { class: "notice" }, t(...pair))));
}
function drawTokens() {
  const row = (name, tokens, promptLength) => make("div", { class: "row" }, make("small", {}, name), make("div", { class: "chips" },
    ...tokens.map(([number, text], at) =>
      make("span", { class: at >= promptLength ? "chip written" : "chip" }, text, make("small", {}, String(number))))));
  const rows = data.source.length ? [row(t("source", "原文"), data.source, Infinity)] : [];
  const name = data.source.length ? t("target", "訳文") : t("text", "文章");
  $("tokens").replaceChildren(...rows, row(name, data.tokens, data.first));
}

// ---- words ----
function drawWords() {
  $("words-section").hidden = !data.words.length;
  const at = Math.max(0, first), columns = data.maps[at].columns;
  $("words").replaceChildren(...data.words.map((word) => {
    const title = word.name === null ? `${data.tokens[word.place][1]} → ?` : word.name;
    const bars = word.candidates.map(([name, probability]) => {
      const bar = make("span", {});
      bar.style.width = Math.max(1, 100 * probability) + "%";
      return make("span", { class: name === word.name ? "bar hit" : "bar" }, make("i", {}, name), make("u", {}, bar), make("em", {}, percent(probability)));
    });
    const rank = word.rank > data.words[0].candidates.length ? t(` · rank ${word.rank}, ${percent(word.probability)}`, ` · ${word.rank} 位、${percent(word.probability)}`) : "";
    const attended = word.looked.map(([column, weight]) => `${columns[column]} ${percent(weight)}`).join(", ");
    return make("button", {
      type: "button", class: "card",
      onclick: () => {
        Object.assign(state, { map: at, layer: MEAN, head: MEAN, row: word.place, column: word.looked[0][0] });
        drawAttention();
        $("map").scrollIntoView({ block: "center" });
        $("map").focus({ preventScroll: true });
      },
    }, make("strong", {}, title), rank, ...bars, make("span", { class: "looked" }, t("attends to ", "注目先：") + attended));
  }));
}

// ---- entropy ----
function drawEntropy() {
  const most = Math.max(...Object.values(data.entropy).flat(2), 1e-9);
  $("entropy").replaceChildren(...Object.entries(data.entropy).map(([key, table]) => {
    const heads = table[0].map((_, head) => make("th", { scope: "col" }, String(head)));
    const rows = table.map((line, layer) => make("tr", {}, make("th", { scope: "row" }, String(layer)), ...line.map((bits, head) => {
      const cell = make("td", {
        class: "tap", title: t(`layer ${layer}, head ${head}: about ${(2 ** bits).toFixed(1)} positions`, `層 ${layer}・ヘッド ${head}：およそ ${(2 ** bits).toFixed(1)} か所`),
        onclick: () => {
          Object.assign(state, { map: data.maps.findIndex((map) => map.key === key), layer, head });
          drawAttention();
          $("map").scrollIntoView({ block: "center" });
        },
      }, bits.toFixed(2));
      cell.style.background = shade(0.9 * bits / most, "--second");
      cell.style.color = textColor(0.9 * bits / most, "--second");
      return cell;
    })));
    return make("figure", {}, make("figcaption", {}, t(...MAPS[key])),
      make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, t("layer \\ head", "層＼ヘッド")), ...heads)), make("tbody", {}, ...rows)));
  }));
}

// ---- the residual stream ----
function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function drawStreams() {
  $("streams").replaceChildren(...Object.entries(data.streams).map(([name, parts]) => {
    const width = 540, height = 300, left = 52, right = 14, top = 30, bottom = 34, depth = parts.x.length - 1;
    const all = Object.values(parts).flat(2).filter((value) => value > 0), most = Math.max(...all), least = Math.min(...all);
    const log = most > 50 * parts.x.map((three) => three[1]).sort((a, b) => a - b)[depth >> 1];
    const x = (layer) => left + ((width - left - right) * layer) / Math.max(1, depth);
    const high = (value) => (log ? Math.log(Math.max(value, least) / least) / Math.log(most / least || 2) : value / most);
    const y = (value) => height - bottom - (height - top - bottom) * high(value);
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": t("norm of the residual stream by layer", "層ごとの残差ストリームのノルム") });
    for (let tick = 0; tick <= 4; tick++) {
      const value = log ? least * (most / least) ** (tick / 4) : (most * tick) / 4;
      chart.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      chart.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value >= 100 ? value.toFixed(0) : value.toPrecision(2)));
    }
    for (let layer = 0; layer <= depth; layer += 1 + Math.floor(depth / 15))
      chart.append(svg("text", { x: x(layer), y: height - bottom + 18, "text-anchor": "middle" }, String(layer)));
    let along = left;
    for (const [part, lines] of Object.entries(parts)) {
      const from = part === "x" ? 0 : 1;
      const points = (which) => lines.map((three, at) => `${x(at + from)},${y(three[which])}`);
      chart.append(svg("path", { class: "band " + part, d: "M" + points(0).join("L") + "L" + points(2).reverse().join("L") + "Z" }));
      chart.append(svg("path", { class: part, d: "M" + points(1).join("L") }));
      lines.forEach((three, at) => {
        const dot = svg("circle", { class: part, cx: x(at + from), cy: y(three[1]), r: 3.2 });
        dot.append(svg("title", {}, `${t(...PARTS[part])} ${at + from}: ${three[1]} (${three[0]} – ${three[2]})`));
        chart.append(dot);
      });
      chart.append(svg("text", { class: part, x: along, y: 14 }, "● " + t(...PARTS[part])));
      along += language === "ja" ? 28 + 12.5 * PARTS[part][1].length : 26 + 6.6 * PARTS[part][0].length;
    }
    return make("figure", {}, make("figcaption", {}, t(...KINDS[name]) + (log ? t(" (log scale)", "（対数目盛）") : "")), chart);
  }));
}

// ---- the lens ----
let lensCell = null; // { layer, place }
function drawLens() {
  $("lens-section").hidden = !data.lens;
  if (!data.lens) return;
  const layers = data.lens.length, places = data.tokens.length;
  lensCell = lensCell || { layer: layers - 1, place: data.words.length ? data.words[0].place : 0 };
  const head = make("tr", {}, make("th", {}, t("input", "入力")), ...data.tokens.map(([, name]) => make("th", { scope: "col" }, name)));
  const rows = [...data.lens.keys()].reverse().map((layer) => make("tr", {},
    make("th", { scope: "row" }, layer === 0 ? t("embedding", "埋め込み") : layer === layers - 1 ? t(`${layer - 1} (last)`, `${layer - 1}（最後）`) : String(layer - 1)),
    ...data.lens[layer].map((best, place) => {
      const cell = make("td", { onpointerenter: () => pick(layer, place), onpointerdown: () => pick(layer, place) }, best[0][0]);
      cell.style.background = shade(best[0][1]);
      cell.style.color = textColor(best[0][1]);
      return cell;
    })));
  $("lens").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  function pick(layer, place, follow) {
    lensCell = { layer: Math.min(layers - 1, Math.max(0, layer)), place: Math.min(places - 1, Math.max(0, place)) };
    $("lens").querySelector("td.at")?.classList.remove("at");
    const cell = $("lens").tBodies[0].rows[layers - 1 - lensCell.layer].cells[lensCell.place + 1];
    cell.classList.add("at");
    if (follow) cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    const where = lensCell.layer ? t(`after block ${lensCell.layer - 1}`, `ブロック ${lensCell.layer - 1} のあと`) : t("embedding", "埋め込み");
    const best = data.lens[lensCell.layer][lensCell.place].map(([name, probability]) => `${name} ${percent(probability)}`).join(" · ");
    $("lens-cell").replaceChildren(t(`at “${data.tokens[lensCell.place][1]}”, ${where}:`, `「${data.tokens[lensCell.place][1]}」の位置、${where}：`), make("br"), make("b", {}, best));
  }
  $("lens").onkeydown = (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    pick(lensCell.layer - step[0], lensCell.place + step[1], true);
  };
  pick(lensCell.layer, lensCell.place);
}

// ---- positions ----
function drawPositions() {
  const { kind, table, rows } = data.positions, canvas = $("positions");
  $("positions-text").textContent = t(...POSITIONS[kind]);
  canvas.hidden = !table;
  if (!table) return;
  const ratio = window.devicePixelRatio || 1, columns = table[0].length, left = 34, top = 18;
  const wide = Math.max(5, Math.min(16, Math.floor((canvas.parentElement.clientWidth - left - 2) / columns))), tall = rows.length > 40 ? 6 : 13;
  const width = left + wide * columns, height = top + tall * rows.length;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: width + "px", height: height + "px" });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const most = Math.max(...table.flat().map(Math.abs), 1e-9), paper = rgb(themeColor("--card")), up = rgb(themeColor("--red")), down = rgb(themeColor("--accent"));
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  table.forEach((line, row) => {
    line.forEach((value, column) => {
      context.fillStyle = `rgb(${mix(paper, value > 0 ? up : down, Math.abs(value) / most)})`;
      context.fillRect(left + column * wide, top + row * tall, wide, tall);
    });
    if (tall > 10 || row % 8 === 0) { context.fillStyle = themeColor("--faint"); context.fillText(rows[row], 0, top + (row + 0.5) * tall); }
  });
  context.fillStyle = themeColor("--faint");
  for (let column = 0; column < columns; column += 8) context.fillText(String(column), left + column * wide, 8);
  canvas.setAttribute("aria-label", t(...POSITIONS[kind]));
}

function draw() {
  document.documentElement.lang = document.documentElement.dataset.lang = language;
  for (const button of document.querySelectorAll("[data-to]")) button.setAttribute("aria-pressed", String(button.dataset.to === language));
  for (const part of [drawSummary, drawTokens, drawWords, drawAttention, drawEntropy, drawStreams, drawLens, drawPositions]) part();
}
for (const button of document.querySelectorAll("[data-to]"))
  button.addEventListener("click", () => { language = button.dataset.to; draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
fillPickers();
selectLargest();
let resizeTimer = 0;
addEventListener("resize", () => { clearTimeout(resizeTimer); resizeTimer = setTimeout(() => { drawMap(); drawPositions(); }, 100); });
draw();
