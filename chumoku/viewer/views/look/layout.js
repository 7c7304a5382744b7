// The elements of the view Look.
import { el } from "../../core/dom.js";
import { fadeEdges } from "../../core/overflow.js";

export const TABS = ["steps", "heads", "lens", "overview", "off", "patch"];

export function layout(stored) {
  const fresh = el("select", {}, ...[0, 8, 16, 32, 64].map((count) => el("option", { value: String(count) }, String(count))));
  fresh.value = stored.new.get();
  const tab = (name) => el("button", { type: "button", role: "tab", id: "look-tab-" + name, "aria-controls": "look-panel-" + name, t: "look_tab_" + name });
  const panel = (name) =>
    el("div", { role: "tabpanel", id: "look-panel-" + name, "aria-labelledby": "look-tab-" + name, hidden: true });
  const parts = {
    text: el("textarea", { id: "look-text", rows: 2, spellcheck: "false", "t-placeholder": "look_placeholder", value: stored.text.get() }),
    fresh,
    freshLabel: el("label", {}, el("span", { t: "look_new" }), fresh),
    error: el("p", { class: "error", role: "alert" }),
    blockError: el("p", { class: "error", role: "alert" }),
    cut: el("p", { class: "cut", role: "status" }),
    notices: el("div", { role: "status" }),
    pick: el("div", {}),
    contents: fadeEdges(el("nav", { class: "contents", "t-label": "look_contents" })),
    steps: el("div", { class: "steps" }),
    tabs: Object.fromEntries(TABS.map((name) => [name, tab(name)])),
    panels: Object.fromEntries(TABS.map((name) => [name, panel(name)])),
  };
  const go = el("button", { type: "submit", class: "go", t: "look_look" });
  parts.form = el(
    "form",
    { class: "card look-form" },
    el("label", { for: "look-text", class: "hidden", t: "look_text" }),
    el("div", { class: "look-line" }, parts.text, el("div", { class: "controls" }, parts.freshLabel, go)),
    parts.cut,
    parts.error,
    parts.notices,
  );
  const tabs = TABS.map((name) => parts.tabs[name]);
  parts.tablist = fadeEdges(el("div", { class: "tabs", role: "tablist", "t-label": "look_panels" }, ...tabs));
  const picked = el("div", { class: "where-pick" }, parts.pick, el("p", { class: "hint", t: "look_pick_say" }));
  parts.where = el("section", { class: "card where" }, picked);
  parts.panels.steps.append(parts.contents, parts.blockError, parts.steps);
  parts.below = el("div", { class: "look-below", hidden: true }, parts.tablist, parts.where, ...TABS.map((name) => parts.panels[name]));
  parts.root = el("div", { class: "look" }, parts.form, parts.below);
  return parts;
}
