// The parts of the view Inside, before anything is in them.
import { el } from "./dom.js";

export const TABS = ["steps", "heads", "lens", "off"];

export function layout(kept) {
  const fresh = el("select", {}, ...[0, 8, 16, 32, 64].map((count) => el("option", { value: String(count) }, String(count))));
  fresh.value = kept.new.get();
  const tab = (name) => el("button", { type: "button", role: "tab", id: "in-tab-" + name, "aria-controls": "in-panel-" + name, t: "in_tab_" + name });
  const panel = (name) =>
    el("div", { role: "tabpanel", id: "in-panel-" + name, "aria-labeledby": "in-tab-" + name, hidden: true });
  const parts = {
    text: el("textarea", { id: "in-text", rows: 2, spellcheck: "false", "t-placeholder": "in_placeholder", value: kept.text.get() }),
    fresh,
    freshLabel: el("label", {}, el("span", { t: "in_new" }), fresh),
    error: el("p", { class: "error", role: "alert" }),
    blockError: el("p", { class: "error", role: "alert" }),
    cut: el("p", { class: "cut", role: "status" }),
    notices: el("div", { role: "status" }),
    tokens: el("div", { class: "token-lines" }),
    pick: el("div", {}),
    contents: el("nav", { class: "contents", "t-label": "in_contents" }),
    steps: el("div", { class: "steps" }),
    tabs: Object.fromEntries(TABS.map((name) => [name, tab(name)])),
    panels: Object.fromEntries(TABS.map((name) => [name, panel(name)])),
  };
  const go = el("button", { type: "submit", class: "go", t: "in_look" });
  parts.form = el(
    "form",
    { class: "card in-form" },
    el("label", { for: "in-text", class: "hidden", t: "in_text" }),
    el("div", { class: "in-line" }, parts.text, el("div", { class: "controls" }, parts.freshLabel, go)),
    parts.cut,
    parts.error,
    parts.notices,
  );
  parts.tablist = el("div", { class: "tabs", role: "tablist", "t-label": "in_panels" }, ...TABS.map((name) => parts.tabs[name]));
  const picked = el("div", { class: "where-pick" }, parts.pick, el("p", { class: "hint", t: "in_pick_say" }));
  parts.where = el("section", { class: "card where" }, parts.tokens, picked);
  parts.panels.steps.append(parts.contents, parts.blockError, parts.steps);
  parts.below = el("div", { class: "in-below", hidden: true }, parts.tablist, parts.where, ...TABS.map((name) => parts.panels[name]));
  parts.root = el("div", { class: "inside" }, parts.form, parts.below);
  return parts;
}
