// Opening the page: wait for the whole file, check it, and start the worker with the model.
//
//   data-part   contents   { name, precision, bytes, parts: [{ name, stored, size, sha256 }], chars }
//               worker     the worker's script
//               chunk      the payload, in pieces
//               opening    what is shown if the script does not run
import { el } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { documentIsWhole, partsNamed } from "./integrity.js";

const POLL = 150; // ms
const message = el("p", { class: "opening-message", role: "status" });
const megabytes = (count) => (count / 1e6).toFixed(1);

/** An error whose message is a text of the page. */
export class OpeningError extends Error {}

/** Show a text in place of the page's first message, which stays in the document, because its sum is checked later. */
export function showMessage(text) {
  document.body.classList.add("opening");
  message.textContent = text;
  if (!message.isConnected) document.body.append(message);
}

export function removeMessages() {
  document.body.classList.remove("opening");
  for (const element of [message, ...partsNamed("opening")]) element.remove();
}

function readJson(name) {
  try {
    return JSON.parse(partsNamed(name)[0].textContent);
  } catch {
    throw new OpeningError(t("page_damaged"));
  }
}

/** Wait until the browser has read the file; shows how much of it there is. */
async function documentRead() {
  while (document.readyState === "loading") {
    const [contents] = partsNamed("contents");
    const chunks = partsNamed("chunk");
    if (contents && chunks.length) {
      const done = chunks.length * chunks[0].textContent.length;
      const total = readJson("contents").chars;
      showProgress(Math.min(done, total), total);
    }
    await new Promise((done) => setTimeout(done, POLL));
  }
}

const showProgress = (done, total) => showMessage(t("page_opening", { done: megabytes(done), total: megabytes(total) }));

/** The worker with the opened model, and what the page says about itself: { worker, contents, certificate }. */
export async function openPage() {
  await documentRead();
  if (!documentIsWhole()) throw new OpeningError(t("page_damaged"));
  if (typeof DecompressionStream === "undefined" || typeof Worker === "undefined") throw new OpeningError(t("page_old"));
  const contents = readJson("contents");
  const url = URL.createObjectURL(new Blob([partsNamed("worker")[0].textContent], { type: "text/javascript" }));
  const worker = new Worker(url);
  await sendPayload(worker, contents);
  URL.revokeObjectURL(url);
  return { worker, contents, certificate: readJson("certificate") };
}

function sendPayload(worker, contents) {
  const total = contents.parts.reduce((sum, { stored }) => sum + stored, 0);
  return new Promise((opened, failed) => {
    worker.onerror = (event) => failed(new OpeningError(t("page_failed", { message: event.message ?? "" })));
    worker.onmessage = ({ data }) => {
      if (data.read) showProgress(data.read, total);
      if (data.read >= total) showMessage(t("page_preparing"));
      if (data.opened) opened();
      if ("failed" in data) failed(new OpeningError(data.damaged ? t("page_damaged") : t("page_failed", { message: data.failed })));
    };
    worker.postMessage({ open: contents.parts });
    for (const element of partsNamed("chunk")) {
      worker.postMessage({ chunk: element.textContent });
      element.remove();
    }
    worker.postMessage({ end: true });
  });
}
