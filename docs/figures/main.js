// One live figure of the course, by its name in the address: #/softmax?language=ja&theme=dark&embedded
//
// A figure is { strings, make(context) → { root, draw() } }, where context = { t, storedValue } as of the viewer's views.
// Around a figure in a frame, docs/theme/static/live.js sets the frame's height to the one that is sent here.
import { addressedView, followTheme, parameter } from "../../chumoku/viewer/core/address.js";
import { el } from "../../chumoku/viewer/core/dom.js";
import { addStrings, t } from "../../chumoku/viewer/core/i18n.js";
import { Positions } from "../../chumoku/viewer/views/playground/positions.js";
import { makeSoftmax } from "../../chumoku/viewer/views/playground/softmax.js";
import { strings as playgroundStrings } from "../../chumoku/viewer/views/playground/strings.js";
import { figure as arrows } from "./arrows.js";
import { figure as attention } from "./attention.js";
import { figure as feedforward } from "./feedforward.js";
import { figure as lora } from "./lora.js";
import { figure as masks } from "./masks.js";
import { figure as norms } from "./norms.js";
import { figure as sampling } from "./sampling.js";
import { figure as training } from "./training.js";
import { figure as vectors } from "./vectors.js";

const positions = { strings: playgroundStrings, make: (context) => new Positions(context) };
const softmax = { strings: playgroundStrings, make: makeSoftmax };
const FIGURES = { arrows, attention, feedforward, lora, masks, norms, positions, sampling, softmax, training, vectors };

/** A value that lasts as long as the page. */
function storedValue(key, initial) {
  let value = parameter(key) ?? initial;
  return { get: () => value, set: (next) => (value = next) };
}

function start() {
  const view = document.getElementById("view");
  const name = addressedView();
  if (!Object.hasOwn(FIGURES, name)) return void view.replaceChildren(...Object.keys(FIGURES).map((one) => el("p", {}, el("a", { href: `#/${one}` }, one))));
  addStrings(FIGURES[name].strings);
  const { root, draw } = bind(FIGURES[name].make({ t, storedValue }));
  view.replaceChildren(root);
  document.title = `${root.querySelector("h2").textContent} · chumoku`;
  followTheme((theme) => {
    document.documentElement.dataset.theme = theme;
    draw();
  });
  draw();
  if (parent !== window) new ResizeObserver(() => parent.postMessage({ height: view.offsetHeight }, "*")).observe(view);
}

const bind = (made) => ({ root: made.root, draw: () => made.draw() });

addEventListener("hashchange", () => location.reload());
start();
