"use strict";
// Before the first paint: the theme and the language of last time, else those of the system.
(() => {
  const kept = (name) => {
    try {
      return localStorage.getItem("chumoku." + name);
    } catch {
      return null; // storage may be forbidden; then the page simply forgets
    }
  };
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = ["dark", "light"].includes(kept("theme")) ? kept("theme") : dark ? "dark" : "light";
  const native = (navigator.language || "en").startsWith("ja") ? "ja" : "en";
  root.lang = ["en", "ja"].includes(kept("language")) ? kept("language") : native;
})();
