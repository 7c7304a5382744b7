// The page that `chumoku look` writes: the panels of the view Look one below the other, with data from the page itself.
import { el } from "../../core/dom.js";
import { addStrings, language, onLanguage, t } from "../../core/i18n.js";
import { strings as frameStrings } from "../../core/strings.js";
import { startSwitches } from "../../core/switches.js";
import { HeadGrid } from "./heads.js";
import { makeLens } from "./lens.js";
import { makeNumbers } from "./numbers.js";
import { makePredictions } from "./predictions.js";
import { strings } from "./strings.js";
import { makeSpaceHint, TokenLines } from "./tokens.js";

const MAX_BESIDE = 48; // tokens of a map that fits beside the small ones
const MAX_LINEAR = 24; // tokens of a map whose small weights need no emphasis

addStrings(frameStrings);
addStrings(strings);
const look = JSON.parse(document.getElementById("data").textContent);
const longest = Math.max(look.tokens.length, look.source.length);
const isWide = longest > MAX_BESIDE;
const about = el("section", { class: "card about" });
const tokens = new TokenLines(({ part, place }) => {
  tokens.show(look, { part, place });
  heads.open(part, null, null, [place, place]);
});
const spaceHint = makeSpaceHint();
const predictions = makePredictions(t, openMap);
const heads = new HeadGrid(t, { mapOptions: { side: isWide ? 1100 : 540, maxNamed: Infinity } });
const lens = makeLens(t);
const numbers = makeNumbers(t, openMap);

function openMap(key, layer, head, cell) {
  heads.open(key, layer, head, cell);
  heads.mapView.root.scrollIntoView({ block: "center" });
  heads.mapView.focus();
}

function drawAbout() {
  const own = look.maps.filter(({ key }) => key === "encoder" || key === "decoder");
  const sizes = own.map(({ key, layers, heads: count }) => t("look_size", { part: t(`look_kind_${key}`), layers, heads: count }));
  const notices = look.notices.map((pair) => el("p", { class: "cut" }, pair[language() === "ja" ? 1 : 0]));
  const output = look.output ? el("blockquote", { class: "output" }, `→ ${look.output}`) : null;
  const facts = el("p", { class: "hint" }, [look.model, t(`look_kind_${look.kind}`), ...sizes].join(" · "));
  about.replaceChildren(facts, el("blockquote", {}, look.text), output ?? "", ...notices);
}

function draw() {
  drawAbout();
  predictions.show(look);
  numbers.show(look);
  heads.draw();
  lens.redraw();
}

const section = (key, ...inside) => el("section", { class: "card" }, el("h2", { t: key }), ...inside);
const tokenSection = section("look_tokens", el("p", { class: "hint", t: "look_tokens_say" }), spaceHint.root, tokens.root);
document.title = `chumoku look · ${look.text.slice(0, 40)}`;
document.getElementById("view").append(about, tokenSection, predictions.root, heads.root, lens.root, numbers.root);
const { setTheme } = startSwitches(draw);
tokens.show(look, { part: look.kind === "encoder" ? "encoder" : "decoder", place: Math.max(0, look.first - 1) });
heads.root.classList.toggle("wide", isWide);
heads.emphasis.checked = longest > MAX_LINEAR;
heads.show(look);
heads.open(look.maps.some(({ key }) => key === "cross") ? "cross" : look.maps[0].key, null, null);
lens.show(look);
spaceHint.show(look);
draw();
onLanguage(draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => setTheme(matches ? "dark" : "light"));
addEventListener("beforeprint", () => heads.paintAll());
