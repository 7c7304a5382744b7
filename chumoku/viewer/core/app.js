// The frame of the page: the current view, model, language and theme, and the state of the back end.
//
//   #/translate  →  backEnd.loadView("translate")  →  mount(root, context) → { unmount(), refresh?() }
//
// A view's module exports `mount`, and optionally `strings` (its texts), `styles` (its style sheets), `accepts(model)`
// (which models it works with; a view without it needs no model) and `prefers(model)` (which of them it starts with).
// context = { api, t, language, onLanguage, models, model, onModel, theme: { now, onChange }, notice, storedValue }.
//
// A back end (of the served page: main.js; of a page that needs no server: ../in_page/main.js) is
//   { views,                                         their names; the first that one of the models can do is the default
//     connect({ onState, onUnknownModel, restart })  → { api, check }; states are "ok" or the key of a text
//     loadView(name),                                → a promise of the view's module, with its style sheets loaded
//     enableStyles(names) }                          enables these style sheets of views and no others
import { addressedView, followTheme, parameter } from "./address.js";
import { el } from "./dom.js";
import { makeFrame } from "./frame.js";
import { addStrings, language, onLanguage, t } from "./i18n.js";
import { scrollToMiddle } from "./overflow.js";
import { strings } from "./strings.js";
import { startSwitches } from "./switches.js";

const ADDRESSED = ["text", "tab", "new", "beam", "penalty", "kind"]; // values of views that an address may set
const byId = (id) => document.getElementById(id);
const root = document.documentElement;

const themeListeners = new Set();
let backEnd = null;
let connection = null; // { api, check }
let models = [];
let shown = null; // { name, module, handle, cleanups, model, modelListeners }
let loadCount = 0; // a slow view must not replace one that was chosen after it

export function startApp(given) {
  backEnd = given;
  addStrings(strings);
  document.body.prepend(...makeFrame(backEnd.views));
  connection = backEnd.connect({ onState: showState, onUnknownModel: () => reloadModels(false), restart: start });
  const { setTheme } = startSwitches((theme) => [...themeListeners].forEach((callback) => callback(theme)));
  followTheme(setTheme);
  onLanguage(() => (document.title = `${t(shown?.name ?? backEnd.views[0])} · chumoku`));
  addEventListener("hashchange", show);
  start();
}

// ---- the views ----
function viewInAddress() {
  const name = addressedView();
  return backEnd.views.includes(name) ? name : null;
}

/** The first view that works with one of the models, or that cannot be loaded: then it says so. */
async function defaultView() {
  for (const name of models.length ? backEnd.views : []) {
    const module = await backEnd.loadView(name).catch(() => null);
    if (!module?.accepts || models.some((one) => module.accepts(one))) return name;
  }
  return backEnd.views[0];
}

async function show() {
  const load = ++loadCount;
  const name = viewInAddress() ?? (await defaultView());
  if (load !== loadCount) return;
  for (const link of byId("views").children) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollToMiddle(byId("views"), byId("views").querySelector("[aria-current]"));
  let module;
  try {
    module = await backEnd.loadView(name);
  } catch {
    connection.check();
  }
  if (load !== loadCount) return;
  closeView();
  if (!module) return showText(byId("view"), t("no_view"));
  if (module.strings) addStrings(module.strings);
  backEnd.enableStyles(module.styles ?? []);
  openView(name, module);
}

function closeView() {
  shown?.handle?.unmount?.();
  for (const cleanup of shown?.cleanups ?? []) cleanup();
  shown = null;
  byId("view").replaceChildren();
}

function openView(name, module) {
  shown = { name, module, cleanups: [], model: null, modelListeners: new Set() };
  offerModels();
  document.title = `${t(name)} · chumoku`;
  byId("view").className = "view-" + name;
  if (module.accepts && models.length && !shown.model) return showText(byId("view"), t("no_model"));
  if (module.accepts && !models.length) return undefined; // not loaded yet
  shown.handle = module.mount(byId("view"), context(shown));
  return undefined;
}

function context(view) {
  const subscribe = (set) => (callback) => {
    set.add(callback);
    view.cleanups.push(() => set.delete(callback));
  };
  return {
    api: connection.api,
    t,
    language,
    onLanguage: (callback) => view.cleanups.push(onLanguage(callback)),
    models,
    model: () => view.model,
    onModel: subscribe(view.modelListeners),
    theme: { now: () => root.dataset.theme, onChange: subscribe(themeListeners) },
    notice,
    storedValue(key, initial = "") {
      const stored = storedValue(`${view.name}.${key}`, initial);
      if (ADDRESSED.includes(key) && parameter(key) !== null) stored.set(parameter(key));
      return stored;
    },
  };
}

function showText(where, sentence) {
  where.replaceChildren(el("p", { class: "empty" }, sentence));
}

// ---- the models ----
async function start() {
  backEnd.loadView(viewInAddress() ?? backEnd.views[0]).catch(() => {}); // loads in parallel with the models; `show` reports errors
  try {
    models = (await connection.api.get("/v1/models")).data;
  } catch (error) {
    if (error.status !== 401) notice(error.message);
    models = [];
  }
  return show();
}

/** Load the models again: a restarted server may have others. `refresh`: also refresh the view if nothing has changed. */
async function reloadModels(refresh) {
  const before = models;
  try {
    models = (await connection.api.get("/v1/models")).data;
  } catch {
    return undefined; // shown by the banner, or by the form for the key
  }
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  if (same(models, before)) return refresh && shown?.handle?.refresh?.();
  const model = shown?.handle && shown.model && models.find((one) => one.id === shown.model.id);
  if (!model || !same(model, shown.model)) return show(); // opens the view again, with the stored text
  offerModels();
  return shown.handle.refresh?.();
}

function offerModels() {
  const usable = shown.module.accepts ? models.filter((one) => shown.module.accepts(one)) : [];
  const stored = storedValue(`${shown.name}.model`, "");
  const first = usable.find((one) => shown.module.prefers?.(one)) ?? usable[0] ?? null;
  shown.model = usable.find((one) => one.id === stored.get()) ?? first;
  const box = byId("model");
  box.replaceChildren(...usable.map((one) => el("option", { value: one.id }, one.id)));
  box.value = shown.model?.id ?? "";
  box.parentElement.hidden = usable.length === 0;
  box.onchange = () => {
    shown.model = usable.find((one) => one.id === box.value);
    stored.set(box.value);
    for (const callback of [...shown.modelListeners]) callback(shown.model);
  };
}

// ---- values that survive a reload ----
function storedValue(key, initial) {
  let last = initial;
  return {
    get() {
      try {
        return sessionStorage.getItem("chumoku." + key) ?? last;
      } catch {
        return last;
      }
    },
    set(value) {
      last = value;
      try {
        sessionStorage.setItem("chumoku." + key, value);
      } catch {
        // Storage is full or forbidden: the value lasts until the page is closed.
      }
    },
  };
}

// ---- messages ----
let noticeTimer = 0;
function notice(sentence) {
  clearTimeout(noticeTimer);
  byId("notice").textContent = sentence;
  byId("notice").hidden = !sentence;
  noticeTimer = setTimeout(() => (byId("notice").hidden = true), 8000);
}

function showState(state) {
  const banner = byId("dead");
  banner.hidden = state === "ok";
  if (state === "ok") {
    banner.replaceChildren();
    if (!models.length) start();
    else reloadModels(true);
    return;
  }
  const again = el("button", { type: "button", t: "again", onclick: () => connection.check() });
  banner.replaceChildren(el("span", { t: state }), again);
}
