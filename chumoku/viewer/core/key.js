// A server with a key: the key is sent once, and comes back as a cookie that scripts cannot read.
import { el } from "./dom.js";

let asking = null;

/** Ask the reader for the key until the server takes it. */
export function askKey() {
  asking ??= asked().finally(() => (asking = null));
  return asking;
}

function asked() {
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
      const told = await sent(field.value);
      wrong.textContent = told;
      if (told) return;
      dialog.remove();
      done();
    });
  });
}

/** Nothing when the server takes the key, else its sentence. */
async function sent(key) {
  try {
    const answer = await fetch("/v1/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key }),
      credentials: "same-origin",
    });
    return answer.ok ? "" : (await answer.json()).error.message;
  } catch (error) {
    return error.message;
  }
}
