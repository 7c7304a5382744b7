// The beam tree: every partial translation that beam search kept, from left to right.
//
//   x of a node   its step                       y of a node   a leaf: the next line; a parent: that of its best child
//   chosen        the path of the result         dropped       replaced by more probable ones
import { el, formatFixed, svg } from "../../core/dom.js";
import { tokenText } from "../../core/text.js";

export const MAX_BEAM = 8;
const MAX_NODES = 600;
const STEP = 104;
const WIDE = 31; // px of a line with words above it
const NARROW = 19; // px of a line with one word beside its dot
const MAX_CHARS = 10;
const STATE_ORDER = { chosen: 0, ended: 1, live: 2, dropped: 3 };

export function makeTree(t) {
  const hint = el("p", { class: "hint", t: "tr_tree_hint" });
  const stage = el("div", { class: "scroll", tabindex: 0, "t-label": "tr_tree", role: "group" });
  const root = el("div", {}, hint, stage);
  const say = (sentence) => stage.replaceChildren(el("p", { class: "hint" }, sentence));

  function show(tree) {
    if (!tree?.nodes?.length) return say(t("tr_tree_none"));
    const { placed, height } = placeNodes(tree.nodes.slice(0, MAX_NODES));
    const steps = Math.max(...placed.map((one) => one.column));
    const width = (steps + 1) * STEP + 40;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "beam-tree" });
    drawing.setAttribute("aria-label", t("tr_tree_label", { nodes: tree.nodes.length, steps }));
    drawing.append(...placed.filter((one) => one.parent).map(branch), ...placed.map(dot));
    stage.replaceChildren(drawing);
    return undefined;
  }

  return { root, show, say };
}

/** Nodes with y, column and parent. Parents come before children; nodes without a parent get a common root. */
export function placeNodes(nodes) {
  const root = { root: true, state: "chosen", text: "", parent: null, children: [], column: 0, y: 0 };
  const placed = nodes.map((node) => ({ ...node, parent: root, children: [] }));
  placed.forEach((one, at) => {
    const parent = nodes[at].parent;
    if (parent >= 0 && parent < at) one.parent = placed[parent];
    one.column = one.parent.column + 1;
    one.parent.children.push(one);
  });
  const height = assignLines(root);
  return { placed: [root, ...placed], height };
}

/** Set the y of every node; with an explicit stack, because a deep tree would overflow the call stack. */
function assignLines(root) {
  const order = (a, b) => STATE_ORDER[a.state] - STATE_ORDER[b.state] || b.score - a.score;
  const todo = [[root, false]];
  let y = 0;
  while (todo.length) {
    const [node, done] = todo.pop();
    if (!node.children.length) node.y = y += hasOwnLine(node) ? NARROW : WIDE;
    else if (done) node.y = node.children[0].y;
    else {
      node.children.sort(order);
      todo.push([node, true], ...node.children.map((child) => [child, false]).reverse());
    }
  }
  return y + 14;
}

/** Whether a node is alone in its line: a leaf that is not its parent's best child. */
function hasOwnLine(node) {
  return !node.children.length && node.parent !== null && node.parent.children[0] !== node;
}

const xOf = (one) => 8 + one.column * STEP;

function branch(one) {
  const [x1, y1, x2, y2] = [xOf(one.parent), one.parent.y, xOf(one), one.y];
  const bend = `C${x1 + 30} ${y1} ${x1 + 12} ${y2} ${x1 + 46} ${y2}`;
  const path = svg("path", { class: one.state, d: `M${x1} ${y1}${bend}L${x2} ${y2}` });
  path.style.setProperty("stroke-width", (1 + 2.5 * Math.exp(Number(one.logprob) || 0)).toFixed(2));
  return path;
}

function dot(one) {
  const strong = one.state === "ended" || one.state === "chosen";
  const group = svg("g", { class: one.state }, svg("circle", { cx: xOf(one), cy: one.y, r: strong ? 4 : 3 }));
  if (one.root) return group;
  const text = tokenText(one.text ?? "").bare || "␣";
  const short = [...text].length > MAX_CHARS ? [...text].slice(0, MAX_CHARS - 1).join("") + "…" : text;
  const sum = one.children.length ? "" : formatFixed(one.score, 1);
  group.append(svg("title", {}, `${text} · log p ${formatFixed(one.logprob, 2)} · Σ ${formatFixed(one.score, 2)}`));
  if (hasOwnLine(one)) {
    group.append(svg("text", { x: xOf(one) + 8, y: one.y + 4 }, short, svg("tspan", { class: "sum", dx: 6 }, sum)));
  } else {
    group.append(svg("text", { x: xOf(one) + 1, y: one.y - 8, class: "word" }, short));
    if (sum) group.append(svg("text", { x: xOf(one) + 9, y: one.y + 4, class: "sum" }, sum));
  }
  return group;
}
