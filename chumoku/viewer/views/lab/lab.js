// The view Lab: the report of the lab in a frame, or the command that creates it.
import { isAbort } from "../../core/api.js";
import { el } from "../../core/dom.js";

export const styles = ["views/lab/lab.css"];
export const strings = {
  en: {
    lab_title: "The notes, executed",
    lab_none: "There is no report yet. Create one with one of these commands. The full run takes four to seven minutes on two cores, --quick about one.",
    lab_quick: "This is the report of a short run (--quick), in which claims that need full training are not judged. `chumoku lab run all` judges them, and its report then appears here.",
    lab_again: "Check again",
    lab_open: "Open in a new tab",
  },
  ja: {
    lab_title: "ノートの内容を実験で確かめる",
    lab_none: "レポートはまだありません。次のどちらかのコマンドで作成できます。2 コアで 4〜7 分、--quick を付けると約 1 分かかります。",
    lab_quick: "短い実行（--quick）のレポートです。十分な学習が必要な主張は判定していません。`chumoku lab run all` を実行すると判定され、そのレポートがここに表示されます。",
    lab_again: "再確認",
    lab_open: "新しいタブで開く",
  },
};

const REPORT = "/lab/report.html";

export function mount(root, { api, language, onLanguage, theme }) {
  const abort = new AbortController();
  const report = () => `${REPORT}?language=${language()}&theme=${theme.now() === "dark" ? "dark" : "light"}`;
  const body = el("div", { class: "lab" });
  root.append(body);

  let quick = false; // whether the report is that of a short run

  async function load() {
    try {
      const found = await api.get("/v1/lab", { signal: abort.signal });
      quick = found.quick;
      body.replaceChildren(...(found.report ? frame() : missing()));
    } catch (error) {
      if (!isAbort(error)) body.replaceChildren(el("p", { class: "error", role: "alert" }, error.message), ...missing());
    }
  }

  const frame = () => [
    ...(quick ? [el("p", { class: "hint lab-quick", t: "lab_quick" })] : []),
    el("p", { class: "lab-open" }, el("a", { href: report(), target: "_blank", rel: "noopener", t: "lab_open" })),
    el("iframe", { src: report(), class: "lab-frame", "t-title": "lab_title", sandbox: "" }),
  ];
  const missing = () => [
    el(
      "section",
      { class: "card lab-none" },
      el("h1", { t: "lab_title" }),
      el("p", { t: "lab_none" }),
      el("pre", {}, el("code", {}, "chumoku lab run all\nchumoku lab run all --quick")),
      el("button", { type: "button", t: "lab_again", onclick: load }),
    ),
  ];
  // The report has no scripts, so it is loaded again for another language or theme.
  const reload = () => body.querySelector(".lab-frame") && body.replaceChildren(...frame());
  onLanguage(reload);
  theme.onChange(reload);
  load();
  return { refresh: load, unmount: () => abort.abort() };
}
