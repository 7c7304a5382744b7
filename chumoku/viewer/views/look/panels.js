// The panels beside the steps: all heads, the logit lens, switched-off heads, and patching. Each loads when its tab is opened.
import { isAbort } from "../../core/api.js";
import { Ablation } from "./ablation.js";
import { HeadGrid } from "./heads.js";
import { makeLens } from "./lens.js";
import { makeNumbers } from "./numbers.js";
import { Patching } from "./patching.js";
import { makePredictions } from "./predictions.js";

export class LookPanels {
  constructor(view, api, t) {
    Object.assign(this, { view, api, grid: null, gridAbort: null, lensAbort: null });
    this.heads = new HeadGrid(t, {
      onChoose: (key, layer, head) => view.select({ part: key.includes("encoder") ? "encoder" : "decoder", layer, head }),
      onLayer: (layer) => this.loadLayer(layer),
      onStep: () => view.parts.tabs.steps.click(),
    });
    this.lens = makeLens(t);
    const openMap = (...where) => this.openMap(...where);
    this.overview = [makePredictions(t, openMap), makeNumbers(t, openMap)];
    this.ablation = new Ablation(t, api);
    this.patching = new Patching(t, api);
    const { panels } = view.parts;
    panels.heads.append(this.heads.root);
    panels.lens.append(this.lens.root);
    panels.overview.append(...this.overview.map((one) => one.root));
    panels.off.append(this.ablation.root);
    panels.patch.append(this.patching.root);
  }

  reset() {
    this.grid = null;
  }

  open(tab) {
    if (tab === "heads" && !this.grid) this.showGrid(this.view.look, null);
    if (tab === "lens") this.openLens();
    if (tab === "overview") this.showOverview();
    if (tab === "off") this.ablation.resume();
    if (tab === "patch") this.patching.resume();
  }

  /** Abort the requests of all panels except one; null: of all. */
  stopExcept(tab) {
    if (tab !== "heads") {
      this.gridAbort?.abort();
      this.heads.resetLayer();
    }
    if (tab !== "lens") this.lensAbort?.abort();
    if (tab !== "off") this.ablation.stop();
    if (tab !== "patch") this.patching.stop();
  }

  redraw() {
    if (this.grid) this.heads.draw();
    this.lens.redraw();
    if (this.view.tab === "overview") this.showOverview();
    this.ablation.redraw();
    this.patching.redraw();
  }

  showOverview() {
    for (const one of this.overview) one.show(this.view.look);
  }

  openMap(key, layer, head, cell) {
    this.showGrid(this.view.look, null);
    this.view.parts.tabs.heads.click();
    this.heads.open(key, layer, head, cell);
    this.heads.mapView.focus();
  }

  unmount() {
    this.heads.unmount();
  }

  showGrid(look, layer) {
    this.grid = look;
    const { encoder, decoder } = this.view.depths();
    this.heads.show(look, { depth: Math.min(encoder || decoder, decoder || encoder), layer });
  }

  /** Load the maps of one layer, for longer texts; null: show all layers again. */
  async loadLayer(layer) {
    this.gridAbort?.abort();
    if (layer === null) return this.showGrid(this.view.look, null);
    const { signal } = (this.gridAbort = new AbortController());
    try {
      const look = await this.api.post("/v1/look", { ...this.view.samePass, layer, lens: false }, { signal });
      this.heads.say(look.notices.length ? this.view.inLanguage(look.notices[0]) : "");
      this.showGrid(look, layer);
    } catch (error) {
      if (!isAbort(error)) this.heads.say(error.message);
    }
    return undefined;
  }

  async openLens() {
    const { view } = this;
    const { encoder, decoder } = view.depths();
    if (view.look.lens || decoder + encoder === 0) return this.lens.show(view.look);
    this.lens.wait();
    this.lensAbort?.abort();
    const { signal } = (this.lensAbort = new AbortController());
    try {
      const { lens } = await this.api.post("/v1/look", { ...view.samePass, maps: [], lens: true }, { signal });
      view.look = { ...view.look, lens };
      this.lens.show(view.look);
    } catch (error) {
      if (!isAbort(error)) view.parts.error.textContent = error.message;
    }
    return undefined;
  }
}
