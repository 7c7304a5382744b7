// The view Inside: one text, and every number the model has on its way from tokens to a choice.
//
//   POST /v1/look          once a text: tokens, maps, entropy, words      → the picture of heads, the grid
//   POST /v1/look/block    for each place, layer and head looked at       → the steps
//
// What the model wrote goes along as tokens with every later question, so that all of them speak of one pass.
import { dropped } from "../../core/api.js";
import { el, rested } from "../../core/dom.js";
import { makeHeads } from "./heads.js";
import { layout, TABS } from "./layout.js";
import { makeLens } from "./lens.js";
import { makeOff } from "./ablation.js";
import { makePick } from "./head_picker.js";
import { steps } from "./steps.js";
import { tokenLines } from "./tokens.js";
import { cutEnd } from "../../core/text.js";

export { strings } from "./strings.js";
export const styles = ["views/look/look.css"];
export const accepts = () => true;

const LETTERS = 20000;
const LENS_AT_ONCE = 400_000; // layers × vocabulary that cost nothing worth waiting for

export function mount(root, context) {
  const { api, t } = context;
  const kept = { text: context.keep("text"), tab: context.keep("tab", "steps"), new: context.keep("new", "8") };
  const state = { look: null, asked: null, given: null, block: null, grid: null, tab: kept.tab.get() };
  Object.assign(state, { part: "decoder", layer: 0, head: 0, place: 0, abort: null, blockAbort: null, gridAbort: null, lensAbort: null });
  const parts = layout(kept);
  const pick = makePick(t, (layer, head) => choose({ layer, head }));
  const heads = makeHeads(t, {
    onChoose: (key, layer, head) => choose({ part: stackOf(key), layer, head }),
    onLayer: oneLayer,
    onStep: () => parts.tabs.steps.click(),
  });
  const lens = makeLens(t);
  const off = makeOff(t, api);
  parts.pick.append(pick.root);
  parts.panels.heads.append(heads.root);
  parts.panels.lens.append(lens.root);
  parts.panels.off.append(off.root);
  root.append(parts.root);

  const stackOf = (key) => (key.includes("encoder") ? "encoder" : "decoder");
  const depths = () => {
    const { kind, layers, encoder_layers: encoder, heads: count } = context.model();
    return { encoder: kind === "decoder" ? 0 : encoder || layers, decoder: kind === "encoder" ? 0 : layers, heads: count };
  };

  // ---- one look ----
  async function look() {
    stop();
    const text = cutEnd(parts.text.value, LETTERS);
    parts.cut.textContent = text.length < parts.text.value.length ? t("look_cut", { most: LETTERS }) : "";
    parts.error.textContent = "";
    if (!text.trim()) return show(null);
    const mine = (state.abort = new AbortController());
    const model = context.model();
    const asked = { model: model.id, text, ...(model.kind !== "encoder" && { new: Number(parts.fresh.value) }) };
    parts.root.setAttribute("aria-busy", "true");
    try {
      const told = await api.post("/v1/look", { ...asked, lens: model.vocabulary * model.layers < LENS_AT_ONCE }, { signal: mine.signal });
      state.asked = asked;
      state.given = { model: model.id, text, ...(model.kind !== "encoder" && { target: written(told) }) };
      show(told);
    } catch (error) {
      if (dropped(error)) return undefined;
      parts.error.textContent = error.message;
    }
    parts.root.removeAttribute("aria-busy");
    return undefined;
  }

  const written = (told) => [...told.tokens.slice(told.first).map(([id]) => id), ...(told.then ? [told.then.id] : [])];

  function show(told) {
    state.look = told;
    state.grid = null;
    state.block = null;
    parts.below.hidden = told === null;
    parts.root.removeAttribute("aria-busy");
    if (!told) return;
    const { encoder, decoder } = depths();
    if (!(state.part === "decoder" ? decoder : encoder)) state.part = decoder ? "decoder" : "encoder";
    state.place = told.kind === "decoder" ? told.first - 1 : Math.min(1, row().length - 1);
    notices(told);
    choose({});
    off.show(told, depths(), { ...state.asked });
    openTab();
  }

  function notices(told) {
    const at = context.language() === "ja" ? 1 : 0;
    parts.notices.replaceChildren(...told.notices.map((pair) => el("p", { class: "cut" }, pair[at])));
  }

  // ---- one place, one layer, one head ----
  const row = () => (state.part === "encoder" && state.look.source.length ? state.look.source : state.look.tokens);

  function choose(change) {
    Object.assign(state, change);
    const there = depths();
    state.layer = Math.min(state.layer, there[state.part] - 1);
    state.head = Math.min(state.head, there.heads - 1);
    state.place = Math.max(0, Math.min(state.place, row().length - 1));
    mark();
    if (state.tab === "steps") later();
  }

  function mark() {
    const there = depths();
    pick.show({ layers: there[state.part], heads: there.heads, entropy: state.look.entropy[state.part] ?? [[]] });
    pick.choose(state.layer, state.head);
    tokens();
  }

  function tokens() {
    const focused = parts.tokens.contains(document.activeElement);
    parts.tokens.replaceChildren(...tokenLines(state.look, state, choose));
    if (focused) parts.tokens.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
  }

  async function block() {
    state.blockAbort?.abort();
    const mine = (state.blockAbort = new AbortController());
    const { part, layer, head, place } = state;
    parts.panels.steps.setAttribute("aria-busy", "true");
    try {
      const told = await api.post("/v1/look/block", { ...state.given, part, layer, head, place }, { signal: mine.signal });
      parts.blockError.textContent = "";
      drawSteps(told, { part, layer, head, place });
    } catch (error) {
      if (dropped(error)) return;
      parts.blockError.textContent = error.message;
    }
    parts.panels.steps.removeAttribute("aria-busy");
  }

  function drawSteps(told, chosen) {
    state.block = { told, chosen };
    const cards = steps(told, state.look, chosen, t);
    parts.steps.replaceChildren(...cards);
    parts.contents.replaceChildren(
      ...cards.map((card) => {
        const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
        const go = () => card.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
        return el("button", { type: "button", class: "quiet", t: card.dataset.title, onclick: go });
      }),
    );
  }

  // ---- the other panels ----
  function openTab() {
    leave();
    for (const name of TABS) {
      parts.tabs[name].setAttribute("aria-selected", String(name === state.tab));
      parts.tabs[name].tabIndex = name === state.tab ? 0 : -1;
      parts.panels[name].hidden = name !== state.tab;
    }
    parts.where.hidden = state.tab !== "steps";
    if (!state.look) return;
    if (state.tab === "steps") later();
    if (state.tab === "heads" && !state.grid) showGrid(state.look, null);
    if (state.tab === "lens") openLens();
    if (state.tab === "off") off.again();
  }

  /** Nobody waits any more for what only the other tabs show. */
  function leave() {
    if (state.tab !== "steps") {
      later.stop();
      state.blockAbort?.abort();
    }
    if (state.tab !== "heads") {
      state.gridAbort?.abort();
      heads.told();
    }
    if (state.tab !== "lens") state.lensAbort?.abort();
    if (state.tab !== "off") off.stop();
  }

  function showGrid(told, layer) {
    state.grid = told;
    const { encoder, decoder } = depths();
    heads.show(told, { depth: Math.min(encoder || decoder, decoder || encoder), layer });
  }

  async function oneLayer(layer) {
    if (layer === null) {
      state.gridAbort?.abort();
      return showGrid(state.look, null);
    }
    state.gridAbort?.abort();
    const mine = (state.gridAbort = new AbortController());
    try {
      const told = await api.post("/v1/look", { ...state.given, layer, lens: false }, { signal: mine.signal });
      heads.say(told.notices.length ? told.notices[0][context.language() === "ja" ? 1 : 0] : "");
      showGrid(told, layer);
    } catch (error) {
      if (!dropped(error)) heads.say(error.message);
    }
    return undefined;
  }

  async function openLens() {
    if (state.look.lens || depths().decoder + depths().encoder === 0) return lens.show(state.look);
    lens.wait();
    state.lensAbort?.abort();
    const mine = (state.lensAbort = new AbortController());
    try {
      const told = await api.post("/v1/look", { ...state.given, maps: [], lens: true }, { signal: mine.signal });
      state.look = { ...state.look, lens: told.lens };
      lens.show(state.look);
    } catch (error) {
      if (!dropped(error)) parts.error.textContent = error.message;
    }
    return undefined;
  }

  function redraw() {
    if (!state.look) return;
    notices(state.look);
    mark();
    if (state.block) drawSteps(state.block.told, state.block.chosen);
    if (state.grid) heads.redraw();
    lens.redraw();
    off.redraw();
  }

  function stop() {
    for (const name of ["abort", "blockAbort", "gridAbort", "lensAbort"]) state[name]?.abort();
    off.stop();
    later.stop();
  }

  // ---- listening ----
  const later = rested(block, 60);
  parts.form.addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });
  parts.text.addEventListener("input", () => {
    kept.text.set(parts.text.value);
    state.abort?.abort(); // a look at what stood here before
    parts.root.removeAttribute("aria-busy");
  });
  parts.text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    look();
  });
  parts.fresh.addEventListener("change", () => {
    kept.new.set(parts.fresh.value);
    look();
  });
  parts.tokens.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    choose({ place: state.place + move });
  });
  for (const name of TABS)
    parts.tabs[name].addEventListener("click", () => {
      state.tab = name;
      kept.tab.set(name);
      openTab();
    });
  parts.tablist.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const next = parts.tabs[TABS[(TABS.indexOf(state.tab) + move + TABS.length) % TABS.length]];
    next.click();
    next.focus();
  });
  context.onModel(() => {
    parts.freshLabel.hidden = context.model().kind === "encoder";
    look();
  });
  context.onLanguage(redraw);
  context.theme.onChange(redraw);

  parts.freshLabel.hidden = context.model().kind === "encoder";
  if (!TABS.includes(state.tab)) state.tab = "steps";
  if (!parts.text.value) parts.text.value = t("look_example_" + context.model().kind);
  openTab();
  look();
  return {
    refresh: () => !state.look && look(),
    unmount() {
      stop();
      heads.unmount();
    },
  };
}
