// The view About this page: the model, the engine, and the certificate, which can be computed again here.
//
//   POST /v1/certificate, streamed  →  { done, total } …, { results }  →  [data-results] of the view, as JSON
import { isAbort } from "../../core/api.js";
import { button, el } from "../../core/dom.js";

export { strings } from "./strings.js";
export const styles = ["in_page/about/about.css"];

/** page: { contents, certificate }, as in the file. */
export function makeMount({ contents, certificate }) {
  return (root, context) => {
    const view = new About(context, contents, certificate);
    root.append(view.root);
    context.onLanguage(() => view.draw());
    return { unmount: () => view.abort?.abort() };
  };
}

const digits = (number) => Number(number.toPrecision(2)).toString();
const separated = (number) => number.toLocaleString("en-US");

// The inputs of weights/certificate.py, which a certificate names in English.
const INPUTS = {
  "the first token": "about_first_token",
  "the last token": "about_last_token",
  "consecutive tokens": "about_consecutive_tokens",
};

/** The place of a difference in the page's language: "31 random tokens, position 10" → "ランダムなトークン 31 個、位置 10". */
function describePlace(place, t) {
  const [, name, at] = /^(.*?)(?:, position (\d+))?$/.exec(place);
  const random = /^(\d+) random tokens$/.exec(name);
  const input = random ? t("about_random_tokens", { count: random[1] }) : t(INPUTS[name] ?? name);
  return at === undefined ? input : t("about_position", { input, at });
}

class About {
  constructor(context, contents, certificate) {
    Object.assign(this, { context, contents, certificate });
    this.abort = null;
    this.results = null; // of this browser
    this.facts = el("section", { class: "card" });
    this.written = el("div", {});
    this.state = el("p", { class: "hint", role: "status" });
    this.error = el("p", { class: "error", role: "alert" });
    this.here = el("div", {});
    this.check = button("about_check", () => this.run(), { class: "go" });
    this.root = el(
      "div",
      { class: "about" },
      this.facts,
      el(
        "section",
        { class: "card" },
        el("h2", { t: "about_certificate" }),
        el("p", { class: "hint", t: "about_hint" }),
        this.written,
        el("h3", { t: "about_here" }),
        this.check,
        this.state,
        this.error,
        this.here,
      ),
    );
    this.draw();
    this.loadEngine();
  }

  async loadEngine() {
    this.engine = await this.context.api.get("/health");
    this.draw();
  }

  async run() {
    const { api, t } = this.context;
    this.abort = new AbortController();
    this.check.disabled = true;
    this.error.textContent = "";
    try {
      for await (const piece of api.stream("/v1/certificate", {}, { signal: this.abort.signal })) {
        if (piece.total) this.state.textContent = t("about_running", piece);
        if (piece.results) this.results = piece.results;
      }
      this.root.dataset.results = JSON.stringify(this.results);
    } catch (error) {
      if (isAbort(error)) return;
      this.error.textContent = error.message;
    }
    this.state.textContent = "";
    this.check.disabled = false;
    this.draw();
  }

  draw() {
    const { t } = this.context;
    const { certificate } = this;
    this.facts.replaceChildren(el("h2", { t: "about_model" }), this.factList(), el("p", { t: "about_private" }));
    const line = certificate
      ? t("about_written", { browser: certificate.browser, version: certificate.versions.chumoku })
      : t("about_unwritten");
    this.written.replaceChildren(el("h3", {}, line), ...(certificate?.results ?? []).map((one) => this.resultList(one)));
    this.here.replaceChildren(...(this.results ?? []).map((one) => this.resultList(one)));
  }

  factList() {
    const { t } = this.context;
    const { id, kind, encoder_layers: encoder, vocabulary, ...model } = this.context.model();
    const sizes = { ...model, encoder, vocabulary: separated(vocabulary) };
    const { precision, bytes } = this.contents;
    const rows = [
      ["about_model", id],
      ["about_kind", t("about_kind_" + kind)],
      ["about_size", t(encoder ? "about_encoder_layers" : "about_layers", sizes)],
      ["about_weights", t("about_weights_value", { precision, megabytes: (bytes / 1e6).toFixed(1) })],
    ];
    if (this.engine) rows.push(["about_engine", this.describeEngine(this.engine)]);
    return el("dl", {}, ...rows.flatMap(([key, value]) => [el("dt", { t: key }), el("dd", {}, String(value))]));
  }

  describeEngine({ engine, threads, fallback, one_thread: oneThread }) {
    const { t } = this.context;
    const value = t("about_engine_value", { kind: t("about_" + engine), threads });
    if (!oneThread && !fallback) return value;
    const note = oneThread ? t("about_one_thread", { reason: oneThread }) : t("about_fallback", { reason: fallback });
    return t("about_engine_note", { value, note });
  }

  resultList(result) {
    const { t } = this.context;
    const { compared, apart, numbers, limit, largest, best, generated, texts, passed } = result;
    const lines = [
      t("about_apart", { compared: t("about_" + compared), apart: digits(apart), numbers: separated(numbers), limit: digits(limit) }),
      t("about_largest", { difference: digits(largest.difference), place: describePlace(largest.place, t) }),
      ...(compared === "logits" ? [t("about_best", best)] : []),
      ...(generated.total ? [t("about_generated", generated)] : []),
      t("about_texts", texts),
      ...(result.tokens_per_second ? [t("about_rate", { rate: separated(Number(digits(result.tokens_per_second))) })] : []),
    ];
    const verdict = el("span", { class: passed ? "passed" : "different", t: passed ? "about_passed" : "about_different" });
    const title = el("h3", {}, el("span", { t: "about_" + result.engine }), verdict);
    return el("div", { class: "result" }, title, el("ul", {}, ...lines.map((one) => el("li", {}, one))));
  }
}
