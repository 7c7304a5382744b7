// The view Positions & softmax: the notes' figures, to be moved. Everything is computed here, in the page.
import { makePositions } from "./positions.js";
import { makeSoftmax } from "./softmax.js";
import { el } from "../../core/dom.js";

export { strings } from "./strings.js";
export const styles = ["views/playground/playground.css"];

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
