/** A pool panel at a place of the page: asks the kernel while the place is in sight, and shows what it says. */

import { type Kernel } from "../run/kernel-requests";
import { type PoolFacts, PoolModel } from "./model";
import { type StatusPoller, feedOf, request } from "./status-poller";
import { readReply } from "./schema";
import { install } from "./style";
import { PoolPanel } from "./view";
import { VisibilityObserver } from "./visibility";

// A notebook that opens has no kernel yet, and later it may have another one.
const LOOK = 1000;

export class PanelMount {
  readonly panel: PoolPanel;
  private readonly visible: VisibilityObserver;
  private feed: StatusPoller | undefined;
  private kernel: Kernel | undefined;
  private unwatch: (() => void) | undefined;
  private timer: ReturnType<typeof setInterval> | undefined;
  private model: PoolModel | undefined;
  private heard = 0;
  /** It is as a notebook kept it: no kernel has told of it since. */
  private kept = false;
  private id = "";

  /**
   * @param find gives the kernel whose pool it is, as long as there is one.
   * @param name the pool's.
   * @param saved what a notebook kept of it, and when; then it is this pool, and no other of its name.
   */
  constructor(
    place: HTMLElement,
    private readonly find: () => Kernel | undefined,
    private readonly name: string,
    saved?: { pool: PoolFacts; at: number },
  ) {
    const ask = async (content: Record<string, unknown>) => {
      if (!this.kernel) {
        throw new Error("there is no kernel");
      }
      return request(this.kernel)(content);
    };
    const act = async (content: Record<string, unknown>) => readReply(await ask(content));
    this.panel = new PoolPanel(act, () => this.feed?.look(), ask);
    if (saved) {
      this.id = saved.pool.id;
      this.heard = saved.at;
      this.kept = true;
      this.model = new PoolModel(saved.pool, saved.at);
    }
    place.append(this.panel.node);
    this.visible = new VisibilityObserver(this.panel.node, (seen) => (seen ? this.begin() : this.end()));
    this.draw();
  }

  /** The place is on the page. */
  attach(): void {
    const root = this.panel.node.getRootNode();
    install(root instanceof ShadowRoot ? root : document);
    this.visible.begin();
    this.draw();
  }

  /** It is not any more. */
  detach(): void {
    this.visible.end();
  }

  private begin(): void {
    this.look();
    this.timer ??= setInterval(() => this.look(), LOOK);
  }

  private end(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.leave();
  }

  private look(): void {
    const kernel = this.find();
    if (kernel !== this.kernel) {
      this.leave();
      this.kernel = kernel;
      this.feed = kernel && feedOf(kernel, this.name);
      this.draw();
    }
    if (this.feed && !this.unwatch) {
      const feed = this.feed;
      this.unwatch = feed.watch(() => this.hear(feed));
    }
  }

  private leave(): void {
    this.unwatch?.();
    this.unwatch = this.feed = this.kernel = undefined;
  }

  private hear(feed: StatusPoller): void {
    const found = feed.model;
    if (found && !feed.gone && !feed.problem && (!this.id || found.facts.id === this.id)) {
      this.model = found;
      this.heard = Date.now() / 1000;
      this.kept = false;
    }
    this.draw();
  }

  /** Whether the kernel has answered, and it is not this pool that it has. */
  private get gone(): boolean {
    const feed = this.feed;
    return !!feed && (feed.gone || (!feed.problem && !!this.id && !!feed.model && feed.model.facts.id !== this.id));
  }

  private draw(): void {
    const problem = this.feed?.problem ?? "";
    if (!this.model) {
      const ended = `There is no pool ${this.name} any more.`;
      const found = this.feed ? problem || "Connecting …" : "there is no kernel to ask";
      this.panel.wait(this.name, this.gone ? ended : found);
      return;
    }
    const live = this.feed?.model === this.model && !problem;
    const asking = !!this.feed && !this.feed.model && !this.gone;
    this.panel.show(this.model, { live, asking, gone: this.gone, kept: this.kept, problem, at: this.heard });
  }
}
