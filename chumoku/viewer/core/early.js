"use strict";
// Runs before the first paint: sets the saved theme and language, or those of the system.
(() => {
  const saved = (name) => {
    try {
      return localStorage.getItem("chumoku." + name);
    } catch {
      return null; // storage may be forbidden
    }
  };
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = ["dark", "light"].includes(saved("theme")) ? saved("theme") : dark ? "dark" : "light";
  const native = (navigator.language || "en").startsWith("ja") ? "ja" : "en";
  root.lang = ["en", "ja"].includes(saved("language")) ? saved("language") : native;
})();
