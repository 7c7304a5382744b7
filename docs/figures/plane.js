// A plane with points that can be dragged, or moved with the arrow keys.
import { formatFixed, svg } from "../../chumoku/viewer/core/dom.js";

const SIZE = 300;
const STEP = 0.1; // coordinates are multiples of it
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** points: [{ name, x, y, kind? }], changed by the reader; from, to: the range of both axes; `onMove` is called after a change.
 *  → { root, draw(marks) }; marks: SVG elements between the axes and the points, with coordinates of `at`. */
export function makePlane({ points, from, to, arrows = false, onMove }) {
  const at = (x, y) => [((x - from) / (to - from)) * SIZE, SIZE - ((y - from) / (to - from)) * SIZE];
  const root = svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "plane" });

  function move(point, x, y) {
    const inside = (value) => Math.round(Math.min(to, Math.max(from, value)) / STEP) * STEP;
    [point.x, point.y] = [inside(x), inside(y)];
    onMove();
  }

  function follow(event, point) {
    const box = root.getBoundingClientRect();
    const share = { x: (event.clientX - box.left) / box.width, y: 1 - (event.clientY - box.top) / box.height };
    move(point, from + share.x * (to - from), from + share.y * (to - from));
  }

  const handles = points.map((point) => {
    const handle = svg("circle", { r: 8, class: `point ${point.kind ?? ""}`, tabindex: 0, role: "slider" });
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => handle.hasPointerCapture(event.pointerId) && follow(event, point));
    handle.addEventListener("keydown", (event) => {
      const way = MOVES[event.key];
      if (!way) return;
      event.preventDefault();
      move(point, point.x + way[0] * STEP, point.y + way[1] * STEP);
    });
    return handle;
  });

  const line = (x1, y1, x2, y2, kind) => {
    const [[left, top], [right, bottom]] = [at(x1, y1), at(x2, y2)];
    return svg("line", { x1: left, y1: top, x2: right, y2: bottom, class: kind });
  };

  function placeHandle(point, handle) {
    const [x, y] = at(point.x, point.y);
    const told = `(${formatFixed(point.x, 1)}, ${formatFixed(point.y, 1)})`;
    for (const [name, value] of Object.entries({ cx: x, cy: y, "aria-label": point.name, "aria-valuenow": point.x, "aria-valuetext": told })) handle.setAttribute(name, value);
    return svg("text", { x: Math.min(SIZE - 34, x + 11), y: Math.max(14, y - 8) }, point.name);
  }

  const axes = svg("g", {}, line(from, 0, to, 0, "axis"), line(0, from, 0, to, "axis"));
  const [marked, named] = [svg("g"), svg("g")];
  root.append(axes, marked, ...handles, named); // the handles stay, so that a drag and the focus go on
  return {
    root,
    at,
    line,
    draw(marks = []) {
      const lines = arrows ? points.map(({ x, y, kind }) => line(0, 0, x, y, `arrow ${kind ?? ""}`)) : [];
      marked.replaceChildren(...lines, ...marks);
      named.replaceChildren(...points.map((point, number) => placeHandle(point, handles[number])));
    },
  };
}
