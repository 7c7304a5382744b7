// Whether the page is as it was written: one sum of everything in it but the numbers of the model.
//
//   each element with data-part   →   [parent, tag, attributes by name, text]  as JSON, a line each  →  SHA-256
//
// chumoku/web/page.py computes the same. Left out are the text of "digest", which is the sum, and of chunks, which
// payload.js checks. A changed byte in a script or style breaks its hash in the policy, so that the browser does not run
// it; a changed byte in the policy is found here. What a browser or an extension adds has no data-part and is ignored.
import { sha256 } from "./sha256.js";

const WITHOUT_TEXT = ["digest", "chunk"];

function describe(element) {
  const attributes = [...element.attributes].map(({ name, value }) => [name, value]).sort(([one], [other]) => (one < other ? -1 : 1));
  const text = WITHOUT_TEXT.includes(element.dataset.part) ? "" : element.textContent;
  return JSON.stringify([element.parentElement.localName, element.localName, attributes, text]);
}

/** The elements of the page with this part's name. */
export const partsNamed = (name) => [...document.querySelectorAll(`[data-part="${name}"]`)];

/** Whether all parts of the document are there and unchanged. */
export function documentIsWhole() {
  const stray = [...document.body.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim() !== "");
  if (stray || document.compatMode !== "CSS1Compat" || document.characterSet !== "UTF-8") return false;
  const lines = [...document.querySelectorAll("[data-part]")].map((element) => describe(element) + "\n");
  const [digest] = partsNamed("digest");
  return digest !== undefined && sha256(lines.join("")) === digest.textContent;
}
