// The inner product of two vectors in the plane: a · b = a₁b₁ + a₂b₂ = |a| |b| cos θ
import { el, formatFixed } from "../../chumoku/viewer/core/dom.js";
import { formulas } from "../../chumoku/viewer/core/format.js";
import { makePlane } from "./plane.js";

const strings = {
  en: {
    arrows_title: "Two vectors and their inner product",
    arrows_by_numbers: "By their numbers: {a1} × {b1} + {a2} × {b2} = {product}",
    arrows_by_angle: "By lengths and angle: {a} × {b} × cos {angle}° = {a} × {b} × {cosine}",
    arrows_same: "They point the same way, more or less: the inner product is positive.",
    arrows_square: "They are perpendicular: the inner product is 0, however long they are.",
    arrows_apart: "They point apart: the inner product is negative.",
    arrows_none: "One of them has length 0, so there is no angle.",
    arrows_shadow: "The dashed line ends at the shadow of b on the line through a. The inner product is the length of a times the length of this shadow.",
  },
  ja: {
    arrows_title: "二つのベクトルとその内積",
    arrows_by_numbers: "要素から：{a1} × {b1} + {a2} × {b2} = {product}",
    arrows_by_angle: "長さと角度から：{a} × {b} × cos {angle}° = {a} × {b} × {cosine}",
    arrows_same: "だいたい同じ向きなので、内積は正です。",
    arrows_square: "直角なので、長さに関係なく内積は 0 です。",
    arrows_apart: "反対向きに近いので、内積は負です。",
    arrows_none: "片方の長さが 0 なので、角度は決まりません。",
    arrows_shadow: "点線は、a を通る直線に b から下ろした垂線です。a の長さに、b の影の長さを掛けたものが内積です。",
  },
};

function make({ t }) {
  const points = [
    { name: "a", x: 2, y: 0.5 },
    { name: "b", x: 0.8, y: 1.6, kind: "second" },
  ];
  const plane = makePlane({ points, from: -3, to: 3, arrows: true, onMove: () => draw() });
  const readout = el("div", { class: "told numbers", "aria-live": "polite" });
  const root = el(
    "section",
    { class: "card pg" },
    el("h2", { t: "arrows_title" }),
    formulas("a · b = a_1 b_1 + a_2 b_2 = |a| |b| cos θ"),
    el("div", { class: "pg-pair" }, plane.root, readout),
  );

  function draw() {
    const [a, b] = points;
    const product = a.x * b.x + a.y * b.y;
    const [longA, longB] = [a, b].map(({ x, y }) => Math.hypot(x, y));
    const cosine = product / (longA * longB);
    const share = longA ? product / longA ** 2 : 0;
    plane.draw([plane.line(b.x, b.y, a.x * share, a.y * share, "helper")]);
    const say = (key, values) => el("p", {}, t(key, Object.fromEntries(Object.entries(values).map(([name, value]) => [name, formatFixed(value, 2)]))));
    const kind = !longA || !longB ? "none" : Math.abs(cosine) < 0.005 ? "square" : product > 0 ? "same" : "apart";
    const angle = (Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI;
    readout.replaceChildren(
      say("arrows_by_numbers", { a1: a.x, b1: b.x, a2: a.y, b2: b.y, product }),
      kind === "none" ? "" : say("arrows_by_angle", { a: longA, b: longB, angle, cosine }),
      el("p", {}, t(`arrows_${kind}`)),
      el("p", { class: "hint", t: "arrows_shadow" }),
    );
  }

  return { root, draw };
}

export const figure = { strings, make };
