// A labeled slider with its value beside it.
import { el } from "./dom.js";

/** `format` turns the value into text, `from` the slider's number into the value; onInput is called while it moves. */
export function slider(key, { min, max, step = 1, value, format = String, from = (at) => at, onInput }) {
  const output = el("output", { class: "numbers" });
  const input = el("input", { type: "range", min, max, step, value: String(value) });
  const read = () => from(Number(input.value));
  const update = () => {
    output.textContent = format(read());
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    update();
    onInput();
  });
  update();
  return { root: el("label", { class: "slider" }, el("span", { t: key }), input, output), read, input };
}
