"use strict";
// Runs before the first paint: sets the theme and the language of the address (address.js), the saved ones, or the system's.
(() => {
  const address = new URLSearchParams(location.hash.replace(/^[^?]*/, ""));
  const saved = (name) => {
    if (address.has(name)) return address.get(name);
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
  if (address.has("embedded")) root.dataset.embedded = "";
})();
