// The served page: views and style sheets are loaded from the server, and requests are sent to it.
import { makeApi } from "./api.js";
import { startApp } from "./app.js";
import { el } from "./dom.js";
import { watchHealth } from "./health.js";
import { askForKey } from "./key.js";

const sheets = new Map(); // name → { link, ready }

startApp({
  views: ["translate", "chat", "look", "playground", "runs", "lab"],
  connect({ onState, onUnknownModel, restart }) {
    const health = watchHealth((state) => onState(state === "ok" || state === "draining" ? state : "dead"));
    const api = makeApi({ onNoResponse: () => health.check(), onKeyRequired: () => askForKey().then(restart), onUnknownModel });
    return { api, check: () => health.check() };
  },
  async loadView(name) {
    const module = await import(`../views/${name}/${name}.js`);
    await Promise.all((module.styles ?? []).map(loadStyle));
    return module;
  },
  /** Views use the same class names, so only the style sheets of the shown view are enabled. */
  enableStyles(names) {
    for (const [name, { link }] of sheets) if (link.sheet) link.sheet.disabled = !names.includes(name);
  },
});

function loadStyle(name) {
  if (!sheets.has(name)) {
    const link = el("link", { rel: "stylesheet", href: "/viewer/" + name });
    const ready = new Promise((done) => ["load", "error"].forEach((event) => link.addEventListener(event, done)));
    sheets.set(name, { link, ready });
    document.head.append(link);
  }
  return sheets.get(name).ready;
}
