// The elements around the views: the links to them, the switches, and places for messages.
import { el } from "./dom.js";
import { fadeEdges, scrollToMiddle } from "./overflow.js";

/** The elements of the frame, in their order in the page. views: the names of the views, the default first. */
export function makeFrame(views) {
  const links = views.map((name) => el("a", { href: "#/" + name, "data-view": name, t: name }));
  const nav = el("nav", { id: "views", "t-label": "views", onfocusin: ({ target }) => scrollToMiddle(nav, target) }, ...links);
  fadeEdges(nav);
  const model = el("label", { class: "pick-model" }, el("span", { class: "hidden", t: "model" }), el("select", { id: "model" }));
  const quiet = (id) => el("button", { id, type: "button", class: "quiet" });
  const header = el(
    "header",
    { class: "top" },
    el("a", { class: "brand", href: "#/" + views[0] }, el("span", { lang: "ja" }, "注目"), el("span", {}, "chumoku")),
    nav,
    el("div", { class: "switches" }, model, quiet("language"), quiet("theme")),
  );
  return [
    el("a", { class: "skip", href: "#view", t: "skip" }),
    header,
    el("div", { id: "dead", class: "banner", role: "alert", hidden: true }),
    el("main", { id: "view", tabindex: "-1" }),
    el("div", { id: "notice", class: "toast", role: "status", "aria-live": "polite", hidden: true }),
  ];
}
