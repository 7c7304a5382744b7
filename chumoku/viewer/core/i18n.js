// The page's two languages.
//
//   addStrings({ en: { stop: "Stop" }, ja: { stop: "停止" } })   each view has its own
//   t("stop"), t("cut", { most: 64 })                            "{most}" in a text becomes 64
const texts = { en: {}, ja: {} };
const listeners = new Set();

export function addStrings(more) {
  for (const [language, table] of Object.entries(more)) Object.assign(texts[language], table);
}

export const language = () => (document.documentElement.lang === "ja" ? "ja" : "en");

export function t(key, values = {}) {
  const text = texts[language()][key] ?? texts.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (match, name) => (name in values ? String(values[name]) : match));
}

export function onLanguage(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

export function setLanguage(next) {
  document.documentElement.lang = next;
  saveSetting("language", next);
  for (const callback of [...listeners]) callback(next);
}

/** Save a setting for the next visit, if the browser allows it. */
export function saveSetting(name, value) {
  try {
    localStorage.setItem("chumoku." + name, value);
  } catch {
    // Storage is forbidden: the setting lasts until the page is closed.
  }
}
