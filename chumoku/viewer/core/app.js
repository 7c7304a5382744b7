// The frame of the page: which view, which model, which language, which theme, and whether the server lives.
//
//   #/translate  →  import("../views/translate/translate.js")  →  mount(root, context) → { unmount(), refresh?() }
//
// A view's module exports `mount`, and if it likes `strings` (its words), `styles` (its style sheets) and
// `accepts(model)` (which models it can work with; a view without it needs none, and is offered none) and
// `prefers(model)` (which of them it begins with).
// context = { api, t, language, onLanguage, models, model, onModel, theme: { now, onChange }, notice, keep }.
import { makeApi } from "./api.js";
import { el, reword } from "./dom.js";
import { watchHealth } from "./health.js";
import { language, onLanguage, remember, setLanguage, strings, t } from "./i18n.js";
import { askKey } from "./key.js";
import { strings as own } from "./strings.js";

const VIEWS = ["translate", "chat", "look", "playground", "runs", "lab"];
const viewModule = (name) => `../views/${name}/${name}.js`;
const place = (id) => document.getElementById(id);
const root = document.documentElement;

strings(own);
const health = watchHealth(showHealth);
const api = makeApi({ onSilence: () => health.check(), onKey: () => askKey().then(start), onStranger: () => renew(false) });
const themed = new Set();
let models = [];
let shown = null; // { name, module, handle, undo, model, chosen }
let turn = 0; // a view that loads slowly must not push out one chosen after it

// ---- the views ----
function wanted() {
  const name = location.hash.replace(/^#\/?/, "").split(/[/?]/)[0];
  return VIEWS.includes(name) ? name : VIEWS[0];
}

async function show() {
  const name = wanted();
  const mine = ++turn;
  for (const link of place("views").children) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let module;
  try {
    module = await import(viewModule(name));
    await Promise.all((module.styles ?? []).map(styled));
  } catch {
    health.check();
  }
  if (mine !== turn) return;
  leave();
  if (!module) return say(place("view"), t("no_view"));
  if (module.strings) strings(module.strings);
  undress(module.styles ?? []);
  enter(name, module);
}

function leave() {
  shown?.handle?.unmount?.();
  for (const undo of shown?.undo ?? []) undo();
  shown = null;
  place("view").replaceChildren();
}

function enter(name, module) {
  const undo = [];
  shown = { name, module, undo, model: null, chosen: new Set() };
  offerModels();
  document.title = `${t(name)} · chumoku`;
  place("view").className = "view-" + name;
  if (module.accepts && models.length && !shown.model) return say(place("view"), t("no_model"));
  if (module.accepts && !models.length) return undefined; // until the server has told them
  shown.handle = module.mount(place("view"), context(shown));
  return undefined;
}

function context(view) {
  const held = (set) => (callback) => {
    set.add(callback);
    view.undo.push(() => set.delete(callback));
  };
  return {
    api,
    t,
    language,
    onLanguage: (callback) => view.undo.push(onLanguage(callback)),
    models,
    model: () => view.model,
    onModel: held(view.chosen),
    theme: { now: () => root.dataset.theme, onChange: held(themed) },
    notice,
    keep: (key, initial = "") => keeper(`${view.name}.${key}`, initial),
  };
}

function say(where, sentence) {
  where.replaceChildren(el("p", { class: "empty" }, sentence));
}

const sheets = new Map(); // name → { link, ready }
function styled(name) {
  if (!sheets.has(name)) {
    const link = el("link", { rel: "stylesheet", href: "/viewer/" + name });
    const ready = new Promise((done) => ["load", "error"].forEach((event) => link.addEventListener(event, done)));
    sheets.set(name, { link, ready });
    document.head.append(link);
  }
  return sheets.get(name).ready;
}

/** Views name things alike: only the sheets of the one shown hold. */
function undress(names) {
  for (const [name, { link }] of sheets) if (link.sheet) link.sheet.disabled = !names.includes(name);
}

// ---- the models ----
async function start() {
  import(viewModule(wanted())).catch(() => {}); // on its way while the models are asked for; `show` says what failed
  try {
    models = (await api.get("/v1/models")).data;
  } catch (error) {
    if (error.status !== 401) notice(error.message);
    models = [];
  }
  return show();
}

/** Ask again what is served: a server that is back may have other models. `back`: go on where nothing has changed. */
async function renew(back) {
  const before = models;
  try {
    models = (await api.get("/v1/models")).data;
  } catch {
    return undefined; // the banner, or the form for the key, says it
  }
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  if (same(models, before)) return back && shown?.handle?.refresh?.();
  const now = shown?.handle && shown.model && models.find((one) => one.id === shown.model.id);
  if (!now || !same(now, shown.model)) return show(); // the view begins again, with what was typed
  offerModels();
  return shown.handle.refresh?.();
}

function offerModels() {
  const fit = shown.module.accepts ? models.filter((one) => shown.module.accepts(one)) : [];
  const kept = keeper(`${shown.name}.model`, "");
  const first = fit.find((one) => shown.module.prefers?.(one)) ?? fit[0] ?? null;
  shown.model = fit.find((one) => one.id === kept.get()) ?? first;
  const box = place("model");
  box.replaceChildren(...fit.map((one) => el("option", { value: one.id }, one.id)));
  box.value = shown.model?.id ?? "";
  box.parentElement.hidden = fit.length === 0;
  box.onchange = () => {
    shown.model = fit.find((one) => one.id === box.value);
    kept.set(box.value);
    for (const callback of [...shown.chosen]) callback(shown.model);
  };
}

// ---- what is kept over a reload ----
function keeper(key, initial) {
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
        // Full or forbidden: then the text lives as long as the page.
      }
    },
  };
}

// ---- what is said to the reader ----
let quiet = 0;
function notice(sentence) {
  clearTimeout(quiet);
  place("notice").textContent = sentence;
  place("notice").hidden = !sentence;
  quiet = setTimeout(() => (place("notice").hidden = true), 8000);
}

function showHealth(state) {
  const banner = place("dead");
  banner.hidden = state === "ok";
  if (state === "ok") {
    banner.replaceChildren();
    if (!models.length) start();
    else renew(true);
    return;
  }
  const again = el("button", { type: "button", t: "again", onclick: () => health.check() });
  banner.replaceChildren(el("span", { t: state === "draining" ? "draining" : "dead" }), again);
}

// ---- the switches ----
function dress() {
  place("language").textContent = t("to_language");
  place("language").lang = language() === "ja" ? "en" : "ja";
  place("theme").textContent = t(root.dataset.theme === "dark" ? "to_light" : "to_dark");
}

place("views").append(...VIEWS.map((name) => el("a", { href: "#/" + name, "data-view": name, t: name })));
place("language").addEventListener("click", () => setLanguage(language() === "ja" ? "en" : "ja"));
place("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", root.dataset.theme);
  dress();
  for (const callback of [...themed]) callback(root.dataset.theme);
});
onLanguage(() => {
  reword();
  dress();
  document.title = `${t(wanted())} · chumoku`;
});
addEventListener("hashchange", show);
reword();
dress();
start();
