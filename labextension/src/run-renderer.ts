// Draws runs in JupyterLab and Notebook 7: while they go on, told by the kernel, and as saved notebooks keep them.
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { MessageLoop } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";

import { drawAsText, foreignVersion } from "./page/fallback-text";
import { kernelOf } from "./pool/notebook-kernel";
import { copies } from "./run/copy-names";
import { PanelMount } from "./pool/mount";
import { actions, type Kernel, Refusal, Subscription, VIEW_REQUEST } from "./run/kernel-requests";
import type { Host } from "./run/display-context";
import type { Item } from "./run/rank-output";
import { afterKernel, afterSaving, DIED } from "./run/last-words";
import { type Fate, RunModel } from "./run/model";
import { withPictures } from "./run/pictures";
import { reason } from "./run/dom";
import { knows, whenEnding } from "./run/kernel-features";
import { drawPlain } from "./run/rich-output";
import { MIME, readSnapshot, type Snapshot, type State } from "./run/schema";
import { RunView } from "./run/view";
import { WidgetBars } from "./run/widget-bars";
import { arrived, asText, type CommKernel, VIEW, widgetOf, words } from "./run/widgets";

// So long after a run's end the notebook's own output is waited for, before this page brings it.
const LAST = 2000;
// A notebook that opens has no kernel yet: how often it is looked for, and for how long.
const AGAIN = 500;
const CONNECTED = 60_000;
// After so long without an answer it is said that there is none; a late one still counts.
const LATE = 2000;
const NEVER = 120_000;
// A run that goes on changes its output each second, if only by its clock. Where nothing comes, it was saved so.
const STALE = 5000;
// Until the kernel tells of a run, the notebook's output is drawn anew so often.
const PACE = 1000;
const SILENT = "does not answer";
const NO_BUTTONS = "No live buttons: this kernel does not answer on its control channel.";

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
  /** The kernel has told of the run, and goes on to. */
  private told = false;
  /** The run is over, and all that it has shown is here. */
  private whole = false;
  /** Why nobody tells of the run, as the view says it. */
  private orphaned = "";
  /** Why there are no buttons. */
  private note = "";
  /** When the notebook's output has last changed, and been drawn, while the run goes on. */
  private changed = 0;
  private drawnAt = 0;
  private pacing: ReturnType<typeof setTimeout> | undefined;
  private unheed: (() => void) | undefined;
  private bars: WidgetBars | undefined;
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
      snapshot = readSnapshot(withPictures(model.data[MIME], model.data["text/html"]));
    } catch (error) {
      this.refuse(foreignVersion(model.data[MIME], "this run was") || reason(error));
      return;
    }
    // What the kernel tells is newer than what the notebook holds, until that is final.
    const same = snapshot.view === this.run.view;
    if (this.told && !snapshot.finished && same) {
      return;
    }
    if (!same) {
      this.unsubscribe();
      this.whole = false;
    }
    this.snapshot = snapshot;
    this.journal = undefined;
    this.changed = performance.now();
    this.bring(same && !snapshot.finished);
    if (snapshot.finished) {
      this.unsubscribe();
      void this.findJournal(snapshot);
    } else if (this.isAttached && !this.subscription) {
      this.subscribe();
    }
  }

  /** Draw what the notebook's output holds; `soon` where that changes many times a second. */
  private bring(soon: boolean): void {
    const wait = soon ? this.drawnAt + PACE - performance.now() : 0;
    if (wait > 0) {
      this.pacing ??= setTimeout(() => this.bring(false), wait);
      return;
    }
    clearTimeout(this.pacing);
    this.pacing = undefined;
    // A page that has heard all of a run has more of it than the notebook keeps, and goes on to show that.
    if (this.snapshot && !this.isDisposed && !this.whole && !(this.told && !this.snapshot.finished)) {
      this.drawnAt = performance.now();
      this.load(this.snapshot);
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.unsubscribe();
      clearTimeout(this.pacing);
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
    const subscription = new Subscription(
      kernel,
      this.snapshot.view,
      (snapshot) => this.hear(snapshot),
      (delta, buffer) => {
        const fits = this.run.apply(delta, buffer);
        this.view.update();
        if (fits && this.run.finished) {
          this.whole = true;
          this.over();
        }
        return fits;
      },
      (bundle) => this.shown?.setData({ data: bundle as never }),
    );
    this.subscription = subscription;
    this.bars = new WidgetBars(kernel, () => this.view.update());
    this.run.widgetBar = (id) => this.bars?.bar(id);
    this.unheed = whenEnding(kernel, (status) => this.kernelEnds(status));
    void this.open(kernel, subscription);
  }

  /** Ask the kernel of the run; as long as nothing is answered, what the notebook's output brings is drawn. */
  private async open(kernel: Kernel, subscription: Subscription): Promise<void> {
    const wanted = () => !this.isDisposed && this.subscription === subscription && !this.told;
    const late = setTimeout(() => wanted() && this.missAnswer(subscription), LATE);
    try {
      await subscription.open(NEVER);
    } catch (error) {
      if (!wanted()) {
        return;
      }
      if (!(error instanceof Refusal)) {
        this.missAnswer(subscription);
      } else if (await knows(kernel, VIEW_REQUEST, LATE).catch(() => false)) {
        this.orphan("does not know the run any more");
        this.unsubscribe();
      } else {
        // What stands before the kernel may answer in its place, and leave out what it does not know of.
        this.missAnswer(subscription, "does not know the run any more");
      }
    } finally {
      clearTimeout(late);
    }
  }

  /** The kernel tells of the run. */
  private hear(snapshot: Snapshot): void {
    this.told = true;
    this.note = "";
    clearTimeout(this.pacing);
    this.pacing = undefined;
    this.load(snapshot);
  }

  /** Nothing is answered: the notebook's output is all there is, and where that does not change either, it is old. */
  private missAnswer(subscription: Subscription, why = SILENT): void {
    const look = () => {
      if (this.isDisposed || this.subscription !== subscription || this.told || this.snapshot?.finished) {
        return;
      }
      if (performance.now() - this.changed < STALE) {
        this.note = NO_BUTTONS;
        this.view.host = this.host();
        this.view.update();
      } else if (!this.run.finished || (this.orphaned === SILENT && why !== SILENT)) {
        this.note = "";
        this.orphan(why);
      }
      setTimeout(look, STALE / 2);
    };
    look();
  }

  private unsubscribe(): void {
    this.subscription?.close();
    this.unheed?.();
    this.bars?.close();
    this.subscription = this.kernel = this.unheed = this.bars = undefined;
    this.told = false;
    this.note = "";
    this.view.host = this.host();
  }

  /** The notebook's kernel ends, or restarts; one that ends in order may tell how its runs have ended. */
  private kernelEnds(status: string): void {
    const subscription = this.subscription;
    const died = status === DIED;
    setTimeout(() => {
      if (this.isDisposed || !this.snapshot || this.subscription !== subscription || this.run.finished) {
        return;
      }
      const [notice, fate] = afterKernel(this.run.pool, this.snapshot.outliving, status);
      this.run.end(notice, fate);
      this.whole = true;
      const last = ended(this.snapshot, notice, fate);
      this.unsubscribe();
      this.view.update();
      this.shown?.setData({ data: { ...this.shown.data, [MIME]: last } as never });
    }, died ? 0 : LAST);
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

  /** Nobody tells of the run: what was saved while it went on is all there is. `why` says so of the kernel. */
  private orphan(why: string): void {
    if (this.snapshot && !this.isDisposed) {
      this.orphaned = why;
      this.load(ended(this.snapshot, afterSaving(this.snapshot, why), "unknown"));
    }
  }

  /** What a bundle leaves out is read from the nodes, as long as this notebook's kernel reaches them. */
  private async findJournal(snapshot: Snapshot): Promise<void> {
    const wanted = () => !this.isDisposed && this.snapshot === snapshot;
    if (!snapshot.run || !this.run.ranks.some((rank) => rank.log.gone)) {
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
    const pool = (place: HTMLElement) => new PanelMount(place, () => kernelOf(this), this.run.pool);
    const copying = this.note ? {} : copies(() => kernelOf(this), () => this.run.pool);
    if (!this.kernel || !this.told) {
      const log = this.journal ? { log: this.journal } : {};
      const note = this.note ? { note: this.note } : {};
      return { draw, ...log, ...note, ...copying, ...(kernelOf(this) && !this.note ? { pool } : {}) };
    }
    return { draw, pool, ...copying, ...actions(this.kernel, () => ({ run: this.run.run, pool: this.run.pool })) };
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

/** A run that went on, as it was when nothing more was to be heard of it. */
function ended(snapshot: Snapshot, notice: string, fate: Fate): Snapshot {
  if (fate !== "stopped") {
    const unknown = fate === "unknown" ? { unknown: true } : {};
    return { ...snapshot, ...unknown, finished: true, notices: [...snapshot.notices, notice] };
  }
  const over = <T extends { state: State }>(rank: T) =>
    rank.state === "running" ? { ...rank, state: "interrupted" as const } : rank;
  const ranks = snapshot.ranks.map(over);
  const unseen = snapshot.unseen ? { unseen: snapshot.unseen.map(over) } : {};
  return { ...snapshot, ...unseen, state: "interrupted", ranks, finished: true, notices: [...snapshot.notices, notice] };
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
