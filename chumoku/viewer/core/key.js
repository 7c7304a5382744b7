// A server with an API key: the key is sent once, and the server sets a cookie that scripts cannot read.
import { el } from "./dom.js";

let pending = null;

/** Ask the user for the key until the server accepts it. */
export function askForKey() {
  pending ??= showDialog().finally(() => (pending = null));
  return pending;
}

function showDialog() {
  const field = el("input", { type: "password", autocomplete: "off", required: true, id: "key", maxlength: 4096 });
  const wrong = el("p", { class: "error", role: "alert" });
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { t: "key_title" }),
    el("p", { class: "hint", t: "key_hint" }),
    el("label", { for: "key", t: "key" }),
    field,
    wrong,
    el("button", { class: "go", t: "key_send" }),
  );
  const dialog = el("dialog", { class: "key", "t-label": "key_title" }, form);
  document.body.append(dialog);
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  return new Promise((done) => {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      wrong.textContent = await sendKey(field.value);
      if (wrong.textContent) return;
      dialog.remove();
      done();
    });
  });
}

/** An empty string if the server accepts the key, else its error message. */
async function sendKey(key) {
  try {
    const response = await fetch("/v1/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key }),
      credentials: "same-origin",
    });
    return response.ok ? "" : (await response.json()).error.message;
  } catch (error) {
    return error.message;
  }
}
