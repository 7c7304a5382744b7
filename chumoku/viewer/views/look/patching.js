// Activation patching: replace vectors of the residual stream by those of another text, and show the predictions.
import { isAbort } from "../../core/api.js";
import { debounce, el } from "../../core/dom.js";
import { describeChange, moveFocus, sides, toggleButton } from "./change.js";

const MAX_CHARS = 20000;

export class Patching {
  constructor(t, api) {
    Object.assign(this, { t, api });
    this.replaced = new Map(); // JSON of { address, place } → the same object
    this.current = null; // { look, depths, request }
    this.other = null; // { text, tokens: { encoder, decoder } }
    this.result = null;
    this.abort = null;
    this.pending = null; // the request whose response is still missing: a method of this class
    this.later = debounce(() => this.run(), 150);
    this.input = el("input", { type: "text", id: "look-patch-text", maxlength: MAX_CHARS, spellcheck: "false", "t-placeholder": "look_patch_placeholder" });
    this.tables = el("div", { class: "off-boards" });
    this.answer = el("div", { class: "off-answer", "aria-live": "polite" });
    this.error = el("p", { class: "error", role: "alert" });
    const clear = el("button", { type: "button", class: "quiet", t: "look_patch_none", onclick: () => this.clear() });
    const heading = el("div", { class: "off-head" }, el("h2", { t: "look_patch" }), clear);
    const say = el("p", { class: "hint", t: "look_patch_say" });
    const left = el("section", { class: "card" }, heading, say, this.form(), this.tables);
    const right = el("section", { class: "card" }, el("h2", { t: "look_off_answer" }), this.answer, this.error);
    this.root = el("div", { class: "off patch" }, left, right);
  }

  form() {
    const label = el("label", { for: "look-patch-text", class: "hidden", t: "look_patch_other" });
    const go = el("button", { type: "submit", t: "look_patch_compare" });
    const onsubmit = (event) => {
      event.preventDefault();
      this.readOther();
    };
    return el("form", { class: "patch-form", onsubmit }, label, this.input, go);
  }

  show(look, depths, request) {
    this.stop();
    Object.assign(this, { current: { look, depths, request }, other: null, result: null, pending: null });
    this.replaced.clear();
    this.error.textContent = "";
    this.answer.removeAttribute("aria-busy");
    this.redraw();
    if (this.input.value.trim()) this.pending = this.readOther;
  }

  /** Draw again in the current language; replaced vectors stay replaced. */
  redraw() {
    if (!this.current) return;
    this.tables.replaceChildren(...this.makeTables());
    if (this.result) this.drawResult();
    else this.answer.replaceChildren(el("p", { class: "hint", t: "look_patch_wait" }));
  }

  /** Repeat a request that was aborted. */
  resume() {
    this.pending?.call(this);
  }

  stop() {
    this.later.stop();
    this.abort?.abort();
  }

  // ---- requests ----
  /** Send a request that replaces the one before; `use` gets the response. */
  async send(path, body, method, use) {
    this.abort?.abort();
    const { signal } = (this.abort = new AbortController());
    this.error.textContent = "";
    this.pending = method;
    this.answer.setAttribute("aria-busy", "true");
    try {
      use(await this.api.post(path, body, { signal }));
    } catch (error) {
      if (isAbort(error)) return;
      this.error.textContent = error.message;
    }
    this.pending = null;
    this.answer.removeAttribute("aria-busy");
  }

  /** The tokens of the other text. */
  async readOther() {
    const text = this.input.value;
    this.clear();
    this.other = null;
    if (!this.current || !text.trim()) return this.redraw();
    const body = { ...this.current.request, text, maps: [], lens: false };
    return this.send("/v1/look", body, this.readOther, (look) => {
      this.other = { text, tokens: tokensByStack(look) };
      this.redraw();
    });
  }

  async run() {
    if (!this.replaced.size) return this.clear();
    const body = { ...this.current.request, other: this.other.text, replace: [...this.replaced.values()] };
    return this.send("/v1/look/patch", body, this.run, (response) => {
      this.result = response;
      this.drawResult();
    });
  }

  clear() {
    this.stop();
    this.replaced.clear();
    Object.assign(this, { result: null, pending: null });
    this.answer.removeAttribute("aria-busy");
    this.redraw();
  }

  // ---- the tables ----
  makeTables() {
    if (!this.other) return [];
    const { look, depths } = this.current;
    return Object.entries(tokensByStack(look)).map(([part, tokens]) => this.table(part, tokens, depths[part]));
  }

  table(part, tokens, layers) {
    const columns = [
      { address: `${part}.embedding`, name: "x₀", after: this.t("look_patch_embedding") },
      ...Array.from({ length: layers }, (_, layer) => ({
        address: `${part}.blocks.${layer}.output`,
        name: String(layer),
        after: this.t("look_patch_layer", { layer }),
      })),
    ];
    const head = [el("th", { scope: "col", t: "look_patch_own" }), el("th", { scope: "col", t: "look_patch_other" })];
    const rows = tokens.map(([, name], place) => {
      const other = this.other.tokens[part][place]?.[1];
      const kind = `patch-token${other === name ? "" : " differs"}`;
      const names = [el("th", { scope: "row", class: kind, title: name }, name), el("td", { class: kind, title: other ?? "" }, other ?? "—")];
      const cells = columns.map(({ address, after }) => {
        const label = this.t("look_patch_cell", { token: name, after });
        return el("td", {}, other === undefined ? null : this.toggle({ address, place }, label));
      });
      return el("tr", {}, ...names, ...cells);
    });
    const numbers = columns.map(({ name }) => el("th", { scope: "col", class: "numbers" }, name));
    const table = el(
      "table",
      { class: "off-table", onkeydown: (event) => moveFocus(event, table) },
      el("caption", { t: `look_kind_${part}` }),
      el("thead", {}, el("tr", {}, ...head, ...numbers)),
      el("tbody", {}, ...rows),
    );
    return el("div", { class: "scroll" }, table);
  }

  toggle(vector, name) {
    const onChange = () => {
      this.pending = this.run;
      this.later();
    };
    return toggleButton(this.replaced, vector, { class: "switch", "aria-label": name, title: name }, onChange);
  }

  drawResult() {
    const { before, after, other, place } = this.result;
    const { tokens, then, kind } = this.current.look;
    const predicted = kind === "encoder" ? tokens[place]?.[1] : (tokens[place + 1]?.[1] ?? then?.text ?? "…");
    const sentence = before.candidates.length ? [el("p", { class: "hint" }, this.t("look_patch_at", { token: predicted }))] : [];
    const columns = sides([
      { title: "look_patch_own", ...before },
      { title: "look_patch_edited", ...after },
      { title: "look_patch_other", ...other },
    ]);
    this.answer.replaceChildren(...sentence, columns, ...describeChange(this.t, this.result, this.current.look));
  }
}

function tokensByStack({ kind, tokens, source }) {
  return kind === "encoder-decoder" ? { encoder: source, decoder: tokens } : { [kind]: tokens };
}
