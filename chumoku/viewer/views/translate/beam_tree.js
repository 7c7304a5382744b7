// The beam tree: every beginning the search kept, from left to right.
//
//   x of a node   its step                       y of a node   a leaf takes the next line, a parent its best child's
//   chosen        the path to what was said      dropped       pushed out by likelier ones
import { el, figure, svg } from "../../core/dom.js";
import { pieces } from "../../core/text.js";

export const MOST_BEAM = 8;
const MOST = 600; // nodes drawn
const STEP = 104;
const WIDE = 31; // a line with words above it
const NARROW = 19; // a line with one word behind its dot
const LONGEST = 10;
const STRENGTH = { chosen: 0, ended: 1, live: 2, dropped: 3 };

export function makeTree(t) {
  const hint = el("p", { class: "hint", t: "tr_tree_hint" });
  const stage = el("div", { class: "scroll", tabindex: 0, "t-label": "tr_tree", role: "group" });
  const root = el("div", {}, hint, stage);
  const say = (sentence) => stage.replaceChildren(el("p", { class: "hint" }, sentence));

  function show(tree) {
    if (!tree?.nodes?.length) return say(t("tr_tree_none"));
    const { placed, height } = laidOut(tree.nodes.slice(0, MOST));
    const steps = Math.max(...placed.map((one) => one.column));
    const width = (steps + 1) * STEP + 40;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "beam-tree" });
    drawing.setAttribute("aria-label", t("tr_tree_label", { nodes: tree.nodes.length, steps }));
    drawing.append(...placed.filter((one) => one.parent).map(branch), ...placed.map((one) => dot(one, t)));
    stage.replaceChildren(drawing);
    return undefined;
  }

  return { root, show, say };
}

/** Nodes with x, y, column and parent. They come parents first; those without one grow from a root of ours. */
export function laidOut(nodes) {
  const root = { root: true, state: "chosen", text: "", parent: null, children: [], column: 0, y: 0 };
  const placed = nodes.map((node) => ({ ...node, parent: root, children: [] }));
  placed.forEach((one, at) => {
    const parent = nodes[at].parent;
    if (parent >= 0 && parent < at) one.parent = placed[parent];
    one.column = one.parent.column + 1;
    one.parent.children.push(one);
  });
  const height = settle(root);
  return { placed: [root, ...placed], height };
}

/** Give every node its line; a stack of our own, since a tree may be deeper than the language likes to call. */
function settle(root) {
  const order = (a, b) => STRENGTH[a.state] - STRENGTH[b.state] || b.score - a.score;
  const todo = [[root, false]];
  let y = 0;
  while (todo.length) {
    const [node, done] = todo.pop();
    if (!node.children.length) node.y = y += alone(node) ? NARROW : WIDE;
    else if (done) node.y = node.children[0].y;
    else {
      node.children.sort(order);
      todo.push([node, true], ...node.children.map((child) => [child, false]).reverse());
    }
  }
  return y + 14;
}

/** Whether a node has its line for itself: a leaf that is not the best of its parent's. */
function alone(node) {
  return !node.children.length && node.parent !== null && node.parent.children[0] !== node;
}

const across = (one) => 8 + one.column * STEP;

function branch(one) {
  const [x1, y1, x2, y2] = [across(one.parent), one.parent.y, across(one), one.y];
  const bend = `C${x1 + 30} ${y1} ${x1 + 12} ${y2} ${x1 + 46} ${y2}`;
  const path = svg("path", { class: one.state, d: `M${x1} ${y1}${bend}L${x2} ${y2}` });
  path.style.setProperty("stroke-width", (1 + 2.5 * Math.exp(Number(one.logprob) || 0)).toFixed(2));
  return path;
}

function dot(one, t) {
  const strong = one.state === "ended" || one.state === "chosen";
  const made = svg("g", { class: one.state }, svg("circle", { cx: across(one), cy: one.y, r: strong ? 4 : 3 }));
  if (one.root) return made;
  const text = pieces(one.text ?? "").bare || t("tr_end");
  const short = [...text].length > LONGEST ? [...text].slice(0, LONGEST - 1).join("") + "…" : text;
  const sum = one.children.length ? "" : figure(one.score, 1);
  made.append(svg("title", {}, `${text} · log p ${figure(one.logprob, 2)} · Σ ${figure(one.score, 2)}`));
  if (alone(one)) {
    made.append(svg("text", { x: across(one) + 8, y: one.y + 4 }, short, svg("tspan", { class: "sum", dx: 6 }, sum)));
  } else {
    made.append(svg("text", { x: across(one) + 1, y: one.y - 8, class: "word" }, short));
    if (sum) made.append(svg("text", { x: across(one) + 9, y: one.y + 4, class: "sum" }, sum));
  }
  return made;
}
