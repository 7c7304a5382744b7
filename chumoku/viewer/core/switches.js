// The buttons #language and #theme of a page.
import { updateTexts } from "./dom.js";
import { language, onLanguage, saveSetting, setLanguage, t } from "./i18n.js";

const root = document.documentElement;
const byId = (id) => document.getElementById(id);

/** Let the buttons work; onTheme() is called when the theme has changed. → { setTheme(name) } */
export function startSwitches(onTheme) {
  const update = () => {
    byId("language").textContent = t("to_language");
    byId("language").lang = language() === "ja" ? "en" : "ja";
    byId("theme").textContent = t(root.dataset.theme === "dark" ? "to_light" : "to_dark");
  };
  const setTheme = (name) => {
    root.dataset.theme = name;
    update();
    onTheme(name);
  };
  byId("language").addEventListener("click", () => setLanguage(language() === "ja" ? "en" : "ja"));
  byId("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    saveSetting("theme", root.dataset.theme);
  });
  onLanguage(() => {
    updateTexts();
    update();
  });
  updateTexts();
  update();
  return { setTheme };
}
