// A labeled slider with its number beside it.
import { el } from "./dom.js";

/** onInput is called while it moves; `told` writes the number; `from` makes the value of where the slider stands. */
export function slider(key, { min, max, step = 1, value, told = String, from = (at) => at, onInput }) {
  const output = el("output", { class: "numbers" });
  const input = el("input", { type: "range", min, max, step, value: String(value) });
  const read = () => from(Number(input.value));
  const tell = () => {
    output.textContent = told(read());
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    tell();
    onInput();
  });
  tell();
  return { root: el("label", { class: "slider" }, el("span", { t: key }), input, output), read, input };
}
