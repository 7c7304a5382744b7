// The view Positions & softmax: interactive figures, computed in the page.
import { el } from "../../core/dom.js";
import { Positions } from "./positions.js";
import { makeSoftmax } from "./softmax.js";

export { strings } from "./strings.js";
export const styles = ["views/playground/playground.css"];

export function mount(root, context) {
  const positions = new Positions(context);
  const softmax = makeSoftmax(context);
  root.append(el("div", { class: "playground" }, positions.root, softmax.root));
  const draw = () => {
    positions.draw();
    softmax.draw();
  };
  context.onLanguage(draw);
  context.theme.onChange(draw);
  draw();
  return { unmount() {} };
}
