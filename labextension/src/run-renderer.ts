// Draws runs in JupyterLab and Notebook 7: while they go on, told by the kernel, and as saved notebooks keep them.
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { MessageLoop } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";

import { drawAsText, foreignVersion } from "./page/plain";
import { kernelOf } from "./pool/kernel";
import { OpenPanel } from "./pool/open";
import { actions, type Kernel, Subscription } from "./run/control";
import type { Host } from "./run/host";
import type { Item } from "./run/log";
import { RunModel } from "./run/model";
import { reason } from "./run/dom";
import { drawPlain } from "./run/rich";
import { MIME, readSnapshot, type Snapshot } from "./run/schema";
import { RunView } from "./run/view";
import { arrived, asText, type CommKernel, VIEW, widgetOf, words } from "./run/widgets";

// So long after a run's end the notebook's own output is waited for, before this page brings it.
const LAST = 2000;
// A notebook that opens has no kernel yet: how often it is looked for, and for how long.
const AGAIN = 500;
const CONNECTED = 60_000;

/** What is used of JupyterLab's registry of renderers. */
interface RenderMime {
  readonly mimeTypes?: readonly string[];
  preferredMimeType(data: object, safe: "any" | "ensure"): string | undefined;
  createRenderer(mimeType: string): IRenderMime.IRenderer;
  createModel(options: object): IRenderMime.IMimeModel;
}

class RunRenderer extends Widget implements IRenderMime.IRenderer {
  private readonly run = new RunModel();
  private readonly view: RunView;
  private shown: IRenderMime.IMimeModel | undefined;
  private snapshot: Snapshot | undefined;
  private subscription: Subscription | undefined;
  private kernel: Kernel | undefined;
  /** Reads a run that is over; undefined where nobody can. */
  private journal: Host["log"];
  private readonly drawn = new Map<HTMLElement, IRenderMime.IRenderer>();

  constructor() {
    super();
    this.addClass("sky-run-output");
    this.view = new RunView(this.run, this.host());
    this.node.append(this.view.node);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.shown = model;
    let snapshot: Snapshot;
    try {
      snapshot = readSnapshot(model.data[MIME]);
    } catch (error) {
      this.refuse(foreignVersion(model.data[MIME], "this run was") || reason(error));
      return;
    }
    // What the kernel tells is newer than what the notebook holds, until that is final.
    if (this.subscription && !snapshot.finished && snapshot.view === this.run.view) {
      return;
    }
    this.snapshot = snapshot;
    this.journal = undefined;
    this.load(snapshot);
    if (snapshot.finished) {
      this.unsubscribe();
      void this.findJournal(snapshot);
    } else if (this.isAttached) {
      this.subscribe();
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.unsubscribe();
      this.view.detach();
      this.drawn.forEach(end);
      super.dispose();
    }
  }

  protected override onAfterAttach(): void {
    this.view.attach();
    if (this.snapshot && !this.snapshot.finished && !this.subscription) {
      this.subscribe();
    }
  }

  protected override onBeforeDetach(): void {
    this.view.detach();
  }

  protected override onAfterShow(): void {
    this.view.update();
  }

  private load(snapshot: Snapshot): void {
    this.run.load(snapshot);
    this.view.host = this.host();
    this.view.reset();
    if (!this.node.contains(this.view.node)) {
      this.node.replaceChildren(this.view.node);
    }
  }

  /** Show the output's text: what it holds is no run that can be drawn here. */
  private refuse(why: string): void {
    this.snapshot = undefined;
    this.unsubscribe();
    drawAsText(this.node, why, this.shown?.data["text/plain"]);
  }

  // A run that goes on

  private subscribe(): void {
    const kernel = kernelOf(this);
    if (!kernel || !this.snapshot) {
      // A notebook that opens has no kernel yet.
      this.later(() => !this.isDisposed && this.isAttached && !this.subscription && this.subscribe());
      return;
    }
    this.kernel = kernel;
    this.subscription = new Subscription(
      kernel,
      this.snapshot.view,
      (snapshot) => this.load(snapshot),
      (delta, buffer) => {
        const fits = this.run.apply(delta, buffer);
        this.view.update();
        if (fits && this.run.finished) {
          this.over();
        }
        return fits;
      },
      (bundle) => this.shown?.setData({ data: bundle as never }),
    );
    this.view.host = this.host();
    this.subscription.open().catch(() => this.orphan());
  }

  private unsubscribe(): void {
    this.subscription?.close();
    this.subscription = undefined;
    this.kernel = undefined;
    this.view.host = this.host();
  }

  /** The run is over: the notebook hears of it, unless the page has been opened since the cell was begun. */
  private over(): void {
    const subscription = this.subscription;
    setTimeout(() => {
      if (!this.isDisposed && subscription && this.subscription === subscription) {
        subscription.open().catch(() => undefined);
      }
    }, LAST);
  }

  /** Nobody knows of the run any more: what was saved while it went on is all there is. */
  private orphan(): void {
    if (this.snapshot && !this.isDisposed) {
      this.unsubscribe();
      const notice = "This notebook was saved while the run went on, and its kernel does not know it any more.";
      const lost = this.snapshot.run ? `${notice} %sky logs ${this.snapshot.run} may show it.` : notice;
      const ranks = this.snapshot.ranks.map((rank) =>
        rank.state === "running" ? { ...rank, state: "interrupted" as const } : rank,
      );
      this.load({ ...this.snapshot, ranks, finished: true, notices: [...this.snapshot.notices, lost] });
    }
  }

  /** What a bundle leaves out is read from the nodes, as long as this notebook's kernel reaches them. */
  private async findJournal(snapshot: Snapshot): Promise<void> {
    const wanted = () => !this.isDisposed && this.snapshot === snapshot;
    if (!snapshot.run || !snapshot.ranks.some((rank) => rank.dropped)) {
      return;
    }
    let kernel = kernelOf(this);
    for (let waited = 0; !kernel && wanted() && waited < CONNECTED; waited += AGAIN) {
      await new Promise((resolve) => this.later(() => resolve(undefined)));
      kernel = kernelOf(this);
    }
    if (!kernel || !wanted()) {
      return;
    }
    const { log } = actions(kernel, () => ({ run: this.run.run, pool: this.run.pool }));
    try {
      await log?.(snapshot.ranks[0].rank, 0, 1, "events");
    } catch {
      return;
    }
    if (wanted()) {
      this.journal = log;
      this.view.host = this.host();
      this.view.update();
    }
  }

  private later(act: () => unknown): void {
    setTimeout(act, AGAIN);
  }

  // Where this is shown

  private findRenderMime(): RenderMime | undefined {
    for (let at: Widget | null = this.parent; at; at = at.parent) {
      const found = (at as { rendermime?: RenderMime }).rendermime;
      if (found) {
        return found;
      }
    }
    return undefined;
  }

  private host(): Host {
    const draw = (item: Item, node: HTMLElement) => this.draw(item, node);
    const pool = (place: HTMLElement) => new OpenPanel(place, () => kernelOf(this), this.run.pool);
    if (!this.kernel) {
      const log = this.journal ? { log: this.journal } : {};
      return { draw, ...log, ...(kernelOf(this) ? { pool } : {}) };
    }
    return { draw, pool, ...actions(this.kernel, () => ({ run: this.run.run, pool: this.run.pool })) };
  }

  /** Have the notebook's own renderers draw an item, with as much trust as this output has. */
  private draw(item: Item, node: HTMLElement): void {
    const widget = widgetOf(item);
    delete node.dataset.skyWidget;
    if (widget === undefined) {
      this.drawItem(item, node);
      return;
    }
    const known = this.findRenderMime()?.mimeTypes?.includes(VIEW);
    const trusted = this.shown?.trusted ?? false;
    this.drawItem(asText(item, !known ? words.noManager : trusted ? "" : words.notAlive), node);
    if (known && trusted) {
      void this.drawWidget(widget, item, node);
    }
  }

  /** Draw a widget when this page has it, and its text again when it has it no more. */
  private async drawWidget(widget: string, item: Item, node: HTMLElement): Promise<void> {
    // A later drawing into the same node takes this one's place.
    node.dataset.skyWidget = widget;
    const wanted = () => !this.isDisposed && node.isConnected && node.dataset.skyWidget === widget;
    const found = await arrived(() => kernelOf(this) as CommKernel | undefined, widget, wanted);
    const kernel = kernelOf(this) as CommKernel | undefined;
    if (!wanted()) {
      return;
    }
    if (!found || !kernel) {
      this.drawItem(asText(item, words.notAlive), node);
      return;
    }
    // The renderer notes in what it is given that the widget is gone.
    this.drawItem({ ...item, data: structuredClone(item.data) }, node);
    const close = (_: unknown, message: { header: { msg_type: string }; content: { comm_id?: string } }) => {
      const closed = message.header.msg_type === "comm_close" && message.content.comm_id === widget;
      if (closed || !wanted()) {
        kernel.iopubMessage.disconnect(close as never);
      }
      if (closed && wanted()) {
        this.drawItem(asText(item, words.notAlive), node);
      }
    };
    kernel.iopubMessage.connect(close as never);
  }

  private drawItem(item: Item, node: HTMLElement): void {
    for (const [place, renderer] of this.drawn) {
      // The view takes items off the page by itself: cleared ones, and those of another tab.
      if (place === node || !place.isConnected) {
        end(renderer);
        this.drawn.delete(place);
      }
    }
    node.textContent = "";
    const trusted = this.shown?.trusted ?? false;
    const registry = this.findRenderMime();
    const type = registry?.preferredMimeType(item.data, trusted ? "any" : "ensure");
    if (!registry || !type) {
      drawPlain(item, node);
      return;
    }
    const renderer = registry.createRenderer(type);
    this.drawn.set(node, renderer);
    Widget.attach(renderer, node);
    const draw = async () => {
      await renderer.renderModel(registry.createModel({ data: item.data as never, metadata: item.metadata, trusted }));
      this.view.update();
    };
    draw().catch(() => drawPlain(item, node));
  }
}

/** End a renderer, also where its place has left the page already: Lumino detaches no such widget. */
function end(renderer: Widget): void {
  if (renderer.isAttached && !renderer.node.isConnected) {
    MessageLoop.sendMessage(renderer, Widget.Msg.BeforeDetach);
    MessageLoop.sendMessage(renderer, Widget.Msg.AfterDetach);
  }
  renderer.dispose();
}

const extension: IRenderMime.IExtension = {
  id: "sky-jupyter:run",
  rendererFactory: { safe: true, mimeTypes: [MIME], createRenderer: () => new RunRenderer() },
  // Before HTML, which the same output has for everyone else.
  rank: 0,
  dataType: "json",
};

export default extension;
