// The view Lab: the laboratory's report in a frame, or how to make one.
import { dropped } from "../../core/api.js";
import { el } from "../../core/dom.js";

export const styles = ["views/lab/lab.css"];
export const strings = {
  en: {
    lab_title: "The notes, executed",
    lab_none: "There is no report yet. Create one with one of these commands. The full run takes about 15 minutes on two cores, --quick about 2 minutes.",
    lab_again: "Check again",
    lab_open: "Open in a new tab",
  },
  ja: {
    lab_title: "ノートの内容を実験で確かめる",
    lab_none: "レポートはまだありません。次のどちらかのコマンドで作成できます。2 コアで約 15 分、--quick を付けると約 2 分かかります。",
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

  async function look() {
    try {
      const there = (await api.get("/v1/lab", { signal: abort.signal })).report;
      body.replaceChildren(...(there ? framed() : missing()));
    } catch (error) {
      if (!dropped(error)) body.replaceChildren(el("p", { class: "error", role: "alert" }, error.message), ...missing());
    }
  }

  const framed = () => [
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
      el("button", { type: "button", t: "lab_again", onclick: look }),
    ),
  ];
  // The report has no scripts: in another language or theme it is asked for again.
  const again = () => body.querySelector(".lab-frame") && body.replaceChildren(...framed());
  onLanguage(again);
  theme.onChange(again);
  look();
  return { refresh: look, unmount: () => abort.abort() };
}
