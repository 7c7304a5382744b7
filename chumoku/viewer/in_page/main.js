// The page that needs no server: the views of the served page, with a worker as their back end.
import { startApp } from "../core/app.js";
import { el } from "../core/dom.js";
import { addStrings, t } from "../core/i18n.js";
import { accepts as chatAccepts, mount as mountChat, prefers as chatPrefers, strings as chatStrings, styles as chatStyles } from "../views/chat/chat.js";
import { accepts as lookAccepts, mount as mountLook, strings as lookStrings, styles as lookStyles } from "../views/look/look.js";
import { mount as mountPlayground, strings as playgroundStrings, styles as playgroundStyles } from "../views/playground/playground.js";
import { accepts as translateAccepts, mount as mountTranslate, strings as translateStrings, styles as translateStyles } from "../views/translate/translate.js";
import { makeMount, strings as aboutStrings, styles as aboutStyles } from "./about/about.js";
import { makeApi } from "./api.js";
import { OpeningError, openPage, removeMessages, showMessage } from "./opening.js";
import { partsNamed } from "./integrity.js";
import { strings } from "./strings.js";

const VIEWS = {
  translate: { mount: mountTranslate, strings: translateStrings, styles: translateStyles, accepts: translateAccepts },
  chat: { mount: mountChat, strings: chatStrings, styles: chatStyles, accepts: chatAccepts, prefers: chatPrefers },
  look: { mount: mountLook, strings: lookStrings, styles: lookStyles, accepts: lookAccepts },
  playground: { mount: mountPlayground, strings: playgroundStrings, styles: playgroundStyles },
};

/** Views use the same class names, so only the style sheets of the shown view are enabled. */
function enableStyles(names) {
  for (const element of partsNamed("view-style")) element.sheet.disabled = !names.includes(element.dataset.name);
}

/** Where the page is, for tests and tools: opening, open or failed. */
const setState = (state) => (document.documentElement.dataset.page = state);

async function start() {
  setState("opening");
  addStrings(strings);
  const { worker, ...page } = await openPage();
  const api = makeApi(worker);
  const { data: models } = await api.get("/v1/models");
  const all = { ...VIEWS, about: { mount: makeMount(page), strings: aboutStrings, styles: aboutStyles, accepts: () => true } };
  addStrings(aboutStrings); // the names of views are shown before they are opened
  const views = Object.keys(all).filter((name) => !all[name].accepts || models.some(all[name].accepts));
  removeMessages();
  startApp({
    views,
    connect({ onState }) {
      worker.onerror = () => onState("page_stopped");
      return { api, check: () => location.reload() };
    },
    loadView: async (name) => all[name],
    enableStyles,
  });
  document.body.append(el("footer", { class: "page-footer hint" }, el("a", { href: "#/about", t: "page_local" })));
  setState("open");
}

start().catch((error) => {
  showMessage(error instanceof OpeningError ? error.message : t("page_failed", { message: error.message }));
  setState("failed");
});
