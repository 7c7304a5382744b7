// The page's two languages.
//
//   strings({ en: { stop: "Stop" }, ja: { stop: "停止" } })      each view brings its own
//   t("stop"), t("cut", { most: 64 })                            "{most}" in a sentence becomes 64
const words = { en: {}, ja: {} };
const listeners = new Set();

export function strings(more) {
  for (const [language, table] of Object.entries(more)) Object.assign(words[language], table);
}

export const language = () => (document.documentElement.lang === "ja" ? "ja" : "en");

export function t(key, values = {}) {
  const sentence = words[language()][key] ?? words.en[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export function onLanguage(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

export function setLanguage(next) {
  document.documentElement.lang = next;
  remember("language", next);
  for (const callback of [...listeners]) callback(next);
}

/** Keep a choice of the reader's for the next visit, where the browser lets us. */
export function remember(name, value) {
  try {
    localStorage.setItem("chumoku." + name, value);
  } catch {
    // A browser that keeps nothing: the choice holds until the page is closed.
  }
}
