// The view Positions & softmax: the notes' figures, to be moved. Everything is computed here, in the page.
import { makePositions } from "./playground_positions.js";
import { makeSoftmax } from "./playground_softmax.js";
import { el } from "./dom.js";

export { strings } from "./playground_words.js";
export const styles = ["playground.css"];

export function mount(root, context) {
  const positions = makePositions(context);
  const shares = makeSoftmax(context);
  root.append(el("div", { class: "playground" }, positions.root, shares.root));
  const draw = () => {
    positions.draw();
    shares.draw();
  };
  context.onLanguage(draw);
  context.theme.onChange(draw);
  draw();
  return { unmount() {} };
}
