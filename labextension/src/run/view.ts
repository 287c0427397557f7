/** The run view: puts its parts together, and draws what is new once a frame. */

import { save } from "../page/dom";
import { rename } from "../page/icons";
import { Badge } from "./badge";
import { Bars } from "./progress-bars";
import { type Block, textOf } from "./filtered-lines";
import { make, mark, reason, say } from "./dom";
import { Scrollback } from "./scrollback";
import { Footer } from "./footer";
import { Header } from "./header";
import type { Host } from "./display-context";
import { RunModel } from "./model";
import { ScrollPane } from "./scroll-pane";
import { copy, logs } from "./export-text";
import { firstError } from "./first-error";
import { Toggle } from "./toggle-button";
import { Viewport } from "./viewport";
import { install, isDark } from "./style";
import { SimilarLines } from "./similar-lines";
import { RankGrid } from "./rank-grid";
import { Tabs } from "./tabs";
import { Stacks } from "./stacks";
import { culprit, status } from "./run-status";

let views = 0;
// Drawing takes at most this part of a page's time, so that a slow machine's page is still there for its person.
const SHARE = 1 / 8;
const MOST_PAUSE = 200;
// So long its button says that a text has been copied.
const COPIED = 1500;

export class RunView {
  readonly node = make("section", "sky-run", { "data-lm-suppress-shortcuts": "true", role: "group" });
  /** Whether the person has chosen the tab: then it is not changed for them. */
  private chose = false;
  private frame = 0;
  private waiting: ReturnType<typeof setTimeout> | undefined;
  /** When it may be drawn again, by `performance.now`. */
  private due = 0;
  private timer: ReturnType<typeof setInterval> | undefined;
  private title = "";
  private troubles = "";
  /** The run that is shown, by its view's id. */
  private shown = "";
  /** It was loaded anew while a person read in it. */
  private again = false;
  private readonly sight: Viewport;
  private readonly head = new Header();
  private readonly badge = new Badge((place) => this.host.pool?.(place));
  private readonly bars = new Bars();
  private readonly where: Stacks;
  private readonly barsButton: HTMLButtonElement;
  private readonly copyButton: HTMLButtonElement;
  private readonly similar: Toggle;
  private readonly wrap: Toggle;
  private readonly times: Toggle;
  private copied: ReturnType<typeof setTimeout> | undefined;
  private readonly folds = new SimilarLines(() => this.turned());
  private readonly earlier = new Scrollback();
  private readonly foot = new Footer();
  private width: ResizeObserver | undefined;
  private wide = 0;
  private readonly pane = new ScrollPane(this.earlier.node, (toTop) => this.onScroll(toTop));
  private readonly panel = make("div", "sky-panel");
  private readonly tabs = new Tabs(`sky-run-${++views}`, this.panel, (tab) => this.choose(tab));
  private readonly grid = new RankGrid(this.panel, (tab) => this.choose(tab));
  private readonly live = make("div", "sky-hidden", { role: "status" });

  constructor(
    readonly model: RunModel,
    public host: Host,
  ) {
    this.sight = new Viewport(model);
    const head = this.head;
    head.add("follow", "pause", "Pause", () => this.follow(!this.following));
    this.barsButton = head.add("bars", "bars", "Progress bars", () => {
      this.bars.change();
      this.now();
    });
    head.add("interrupt", "stop", "Interrupt", () => void this.interrupt());
    this.where = new Stacks(head.add("where", "where", "Where", () => void this.toggleWhere()));
    rename(this.where.button, "Where", "Where each rank is");
    head.addFilter();
    const error = head.add("error", "error", "First error", () => this.toFirstError());
    rename(error, "First error", "Jump to the first error");
    const similar = head.add("similar", "similar", "Similar", () => this.turnSimilar());
    this.similar = new Toggle(similar, "Similar", "Fold lines that differ only in numbers");
    this.wrap = new Toggle(head.add("wrap", "wrap", "Wrap", () => this.turn(this.wrap)), "Wrap", "Wrap long lines");
    const times = head.add("times", "times", "Times", () => this.turn(this.times));
    this.times = new Toggle(times, "Times", "When this page heard each line");
    head.add("download", "download", "Download", () => void this.download());
    this.copyButton = head.add("copy", "copy", "Copy", () => void this.copy());
    head.search.addEventListener("input", () => {
      this.sight.filter = head.search.value.toLowerCase();
      this.now();
    });
    this.earlier.node.addEventListener("click", () => void this.loadEarlier());
    this.panel.append(this.pane.node, this.pane.grip.node, this.foot.node);
    head.badge(this.badge.node);
    this.node.append(head.node, this.badge.place, this.tabs.node, this.grid.node, this.bars.node, this.where.node, this.panel, this.live);
    // What is typed here is not for the notebook.
    this.node.addEventListener("keydown", (event) => event.stopPropagation());
  }

  /** Whether the newest lines are shown as they come. */
  get following(): boolean {
    return this.pane.following;
  }

  /** The node is on the page. */
  attach(): void {
    const root = this.node.getRootNode();
    install(root instanceof ShadowRoot ? root : document);
    this.badge.attach();
    this.timer ??= setInterval(() => {
      if (!this.model.finished) {
        this.update();
      }
    }, 1000);
    // Where lines are wrapped depends on it.
    this.width ??= new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== this.wide) {
        this.wide = contentRect.width;
        this.update();
      }
    });
    this.width.observe(this.node);
    this.update();
  }

  detach(): void {
    this.width?.disconnect();
    this.badge.detach();
    clearInterval(this.timer);
    clearTimeout(this.waiting);
    this.timer = this.waiting = undefined;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  /** Draw soon what is new. */
  update(): void {
    const pause = this.due - performance.now();
    if (pause <= 0) {
      this.now();
    } else {
      this.waiting ??= setTimeout(() => this.now(), pause);
    }
  }

  /** Draw with the next frame: a person waits for it. */
  private now(): void {
    clearTimeout(this.waiting);
    this.waiting = undefined;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.node.isConnected) {
        const began = performance.now();
        this.draw();
        const ended = performance.now();
        this.due = ended + Math.min(MOST_PAUSE, (ended - began) / SHARE);
      }
    });
  }

  /** A new snapshot has been loaded: nothing that was drawn is of it. */
  reset(): void {
    if (this.model.view !== this.shown) {
      // A run that is over when it is first seen is read from its beginning.
      this.shown = this.model.view;
      this.pane.following = !this.model.finished;
      this.again = false;
    } else if (!this.following) {
      // A reader's lines stay as they are; what has come since is another model's.
      this.again = true;
      this.sight.hold();
      this.foot.reset();
      this.update();
      return;
    }
    this.sight.release();
    this.pane.reset();
    this.earlier.reset();
    this.foot.reset();
    this.update();
  }

  /** Show a rank's tab, or that of all. */
  choose(tab: number, byPerson = true): void {
    this.chose ||= byPerson;
    if (tab !== this.sight.tab) {
      this.sight.choose(tab);
      this.pane.following ||= !this.model.finished;
      this.pane.reset();
      this.foot.reset();
    }
    this.now();
  }

  /** The text of the chosen tab, as far as the page has it: each line by itself. */
  text(): string {
    return textOf(this.sight.blocks(this.earlier.of(this.sight.log)));
  }

  /** Whether lines are folded, so that a few rows are not all there is. */
  private get isFolded(): boolean {
    return this.sight.ofAll && this.similar.on && this.folds.any;
  }

  private blocks(): Block[] {
    this.folds.any = false;
    return this.sight.blocks(this.earlier.of(this.sight.log), this.similar.on ? this.folds : undefined);
  }

  // Drawing

  private draw(): void {
    const model = this.model;
    const dark = String(isDark(this.node.parentElement ?? this.node));
    if (this.node.dataset.dark !== dark) {
      this.node.dataset.dark = dark;
    }
    if (model.ranks.length === 1) {
      this.sight.tab = model.ranks[0].rank;
    }
    const cause = culprit(model);
    if (cause !== undefined && cause !== this.sight.tab && !this.chose) {
      this.choose(cause, false);
    }
    if (model.finished) {
      this.where.close();
    }
    if (this.following || (model.finished && !this.again)) {
      this.sight.release();
      this.again = false;
    } else {
      this.sight.hold();
    }
    this.drawHead();
    const tab = this.sight.tab;
    this.tabs.draw(model.ranks, tab);
    this.grid.draw(model.ranks, tab);
    this.bars.draw(model, tab, this.barsButton);
    this.earlier.draw(this.sight, this.host, model.run !== "");
    this.foot.draw(model, this.host, tab);
    this.pane.draw(this.blocks(), this.host, { wrap: this.wrap.on, times: this.times.on });
  }

  private drawHead(): void {
    const model = this.model;
    if (model.title !== this.title) {
      this.title = model.title;
      mark(this.node, "aria-label", `Run on ${model.title}`);
    }
    this.badge.draw(model.pool, this.host.pool !== undefined);
    const { fresh, ofAll } = this.sight;
    this.head.draw(model, this.host, { following: this.following, fresh, ofAll }, () => this.pane.large || this.isFolded);
    const words = status(model);
    const told = model.finished || words.length > 1 ? words.join(", ") : "";
    if (told !== this.troubles) {
      this.troubles = told;
      this.tell(`${model.title}: ${told}`);
    }
  }

  private tell(text: string): void {
    say(this.live, text);
  }

  // What a person does

  private follow(on: boolean): void {
    this.pane.following = on;
    this.now();
  }

  private turn(toggle: Toggle): void {
    toggle.turn();
    this.now();
  }

  private turnSimilar(): void {
    this.similar.turn();
    // Its rows are others: nothing that was drawn is of them.
    this.pane.reset();
    this.now();
  }

  /** Similar lines were shown or hidden: a person reads, so nothing moves. */
  private turned(): void {
    // A run that has ended, too: what is unfolded would push the line that was clicked out of sight.
    this.follow(false);
  }

  /** Show the first line that tells of an error, else what a rank raised. */
  private toFirstError(): void {
    const found = firstError(this.blocks());
    if (found) {
      this.follow(false);
      this.draw();
      this.pane.show(found.key, found.index);
      this.now();
      this.tell(found.text);
    } else if (!this.foot.showError()) {
      this.tell("no line here tells of an error");
    }
  }

  private onScroll(toTop: boolean): void {
    if (toTop && this.earlier.more) {
      void this.loadEarlier();
    }
    this.now();
  }

  private async loadEarlier(): Promise<void> {
    if (!this.sight.log || !this.host.log || this.earlier.loading) {
      return;
    }
    const below = this.pane.below;
    this.earlier.loading = true;
    this.follow(false);
    if (!this.model.finished) {
      // What comes while it is read must not move the window's beginning.
      this.sight.hold();
    }
    try {
      await this.earlier.load(this.sight.log, this.sight.next, this.host);
    } catch (error) {
      this.where.show(`earlier lines cannot be read: ${reason(error)}`);
    } finally {
      this.earlier.loading = false;
    }
    this.follow(false);
    this.draw();
    // What was in sight stays there.
    this.pane.below = below;
  }

  private async interrupt(): Promise<void> {
    try {
      this.tell((await this.host.interrupt?.()) ?? "");
    } catch (error) {
      this.where.show(`interrupt: ${reason(error)}`);
    }
  }

  private toggleWhere(): Promise<void> {
    return this.where.toggle(async () => (await this.host.where?.()) ?? "");
  }

  private async copy(): Promise<void> {
    await copy(this.text(), this.node);
    this.tell("copied");
    rename(this.copyButton, "Copied", "Copied", "check");
    clearTimeout(this.copied);
    this.copied = setTimeout(() => rename(this.copyButton, "Copy", "Copy", "copy"), COPIED);
  }

  private async download(): Promise<void> {
    const ranks = this.sight.ofAll ? this.model.ranks.map((rank) => rank.rank) : [this.sight.tab];
    const name = ranks.length > 1 ? "all" : `rank-${ranks[0]}`;
    save(await this.whole(ranks), `sky-${this.model.run || "run"}-${name}.log`);
  }

  /** The whole log where it can be read, else what the page has. */
  private async whole(ranks: number[]): Promise<string> {
    if (this.host.log && this.model.run) {
      this.tell("reading the whole log");
      try {
        return await logs(this.host, ranks);
      } catch (error) {
        this.tell(`the log cannot be read: ${reason(error)}; what the page has is saved`);
      }
    }
    return this.text();
  }
}
