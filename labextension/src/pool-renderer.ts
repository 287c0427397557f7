// Draws pools in JupyterLab and Notebook 7: as a notebook kept them, and as they are where its kernel still has them.
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";

import { kernelOf } from "./pool/notebook-kernel";
import { make, say } from "./page/dom";
import { drawAsText, foreignVersion } from "./page/fallback-text";
import { PanelMount } from "./pool/mount";
import { MIME, readSaved, type Saved } from "./pool/schema";
import { reason } from "./run/dom";

class PoolRenderer extends Widget implements IRenderMime.IRenderer {
  private panels: PanelMount[] = [];
  /** What a start is at, and which pool's. */
  private readonly line = make("div", "sky-live-line");
  private readonly phase = make("span");
  private readonly troubles = make("span");
  private starting = "";

  constructor() {
    super();
    this.addClass("sky-pool-output");
    this.line.append(this.phase, this.troubles);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    let saved: Saved;
    try {
      saved = readSaved(model.data[MIME]);
    } catch (error) {
      this.clear();
      const why = foreignVersion(model.data[MIME], "these pools were") || reason(error);
      drawAsText(this.node, why, model.data["text/plain"]);
      return;
    }
    if (saved.start) {
      this.showStart(saved.start);
      return;
    }
    this.clear();
    const find = () => kernelOf(this);
    this.panels = saved.pools.map((pool) => new PanelMount(this.node, find, pool.name, { pool, at: saved.at }));
    if (this.isAttached) {
      this.onAfterAttach();
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.clear();
      super.dispose();
    }
  }

  protected override onAfterAttach(): void {
    this.panels.forEach((panel) => panel.attach());
  }

  protected override onBeforeDetach(): void {
    this.panels.forEach((panel) => panel.detach());
  }

  /** Several times a second. */
  private showStart(start: { pool: string; text: string }): void {
    if (this.starting !== start.pool) {
      this.clear();
      this.starting = start.pool;
      this.addClass("sky-pool-starts");
      this.node.append(this.line);
      this.panels = [new PanelMount(this.node, () => kernelOf(this), start.pool)];
      if (this.isAttached) {
        this.onAfterAttach();
      }
    }
    // Once the panel knows the phases, its own line has the first of them: style.css.
    const [phase, ...troubles] = start.text.split("\n");
    say(this.phase, phase);
    say(this.troubles, troubles.length ? `\n${troubles.join("\n")}` : "");
  }

  private clear(): void {
    this.starting = "";
    this.removeClass("sky-pool-starts");
    this.panels.forEach((panel) => panel.detach());
    this.panels = [];
    this.node.textContent = "";
  }
}

const extension: IRenderMime.IExtension = {
  id: "sky-jupyter:pool",
  rendererFactory: { safe: true, mimeTypes: [MIME], createRenderer: () => new PoolRenderer() },
  // Before HTML, which the same output has for everyone else.
  rank: 0,
  dataType: "json",
};

export default extension;
