/** Asks a kernel how one of its pools is, once a second for as long as somebody looks. */

import { ask, type Kernel, Refusal } from "../run/kernel-requests";
import { reason } from "../run/dom";
import { isChanging, LINES, type PoolFacts, PoolModel } from "./model";
import { readStatus } from "./schema";

const EVERY = 1000;
// Where nothing answers, it is asked less and less often.
const [AGAIN, SELDOM] = [5000, 60_000];
// After so long without an answer it is said that there is none; a late one still counts.
const LATE = 2000;

/** A request, and the answer to it; what the kernel refuses is thrown. */
export type Ask = (content: Record<string, unknown>) => Promise<unknown>;

export class StatusPoller {
  model: PoolModel | undefined;
  /** Why what is known may be old; empty where it is not. */
  problem = "";
  /** The kernel answers, and has no such pool. */
  gone = false;
  private readonly watchers = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asking = false;
  private failures = 0;

  constructor(
    private readonly ask: Ask,
    readonly pool: string,
  ) {}

  /** Have a function called with each answer, until the one that this gives is called. */
  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    this.look();
    return () => {
      this.watchers.delete(watcher);
      if (!this.watchers.size) {
        clearTimeout(this.timer);
        this.timer = undefined;
      }
    };
  }

  /** Ask now, unless it is being asked. */
  look(): void {
    if (!this.asking && this.watchers.size) {
      clearTimeout(this.timer);
      void this.turn();
    }
  }

  private async turn(): Promise<void> {
    this.asking = true;
    const began = Date.now();
    let every = EVERY;
    const late = setTimeout(() => {
      // Of a pool that a kernel has told of, a slow answer is no news.
      if (!this.model) {
        this.problem ||= "this kernel does not answer on its control channel";
        this.watchers.forEach((watcher) => watcher());
      }
    }, LATE);
    try {
      await this.read();
      this.problem = "";
      this.failures = 0;
    } catch (error) {
      this.problem = reason(error);
      if (error instanceof Refusal) {
        await this.examine();
      }
      every = Math.min(SELDOM, AGAIN * 2 ** this.failures++);
    } finally {
      clearTimeout(late);
      this.asking = false;
    }
    if (this.watchers.size && !this.gone) {
      this.timer = setTimeout(() => this.look(), Math.max(0, began + every - Date.now()));
    }
    this.watchers.forEach((watcher) => watcher());
  }

  private async read(): Promise<void> {
    const known = this.gone ? undefined : this.model;
    // All of the log only while something is added to it.
    const whole = !known || isChanging(known.facts) || known.facts.phases.some((phase) => phase.state === "on");
    const found = await this.status({ since: known?.facts.mark ?? 0, ...(whole ? { lines: LINES } : {}) });
    const now = Date.now() / 1000;
    if (known && found.id === known.facts.id) {
      known.take(found, now, whole);
    } else {
      // Another pool under this name; of that one all samples are wanted.
      this.model = new PoolModel(known ? await this.status({ since: 0, lines: LINES }) : found, now);
    }
    this.gone = false;
  }

  private async status(content: Record<string, unknown>): Promise<PoolFacts> {
    const [found] = readStatus(await this.ask({ action: "status", pool: this.pool, ...content }));
    if (!found) {
      throw new Error("the kernel tells nothing of the pool");
    }
    return found;
  }

  /** Whether what was refused is that the pool has ended. */
  private async examine(): Promise<void> {
    try {
      const pools = readStatus(await this.ask({ action: "status" }));
      if (!pools.some((pool) => pool.name === this.pool)) {
        this.gone = true;
        this.problem = "";
      }
    } catch {
      // Then the first reason stands.
    }
  }
}

const feeds = new WeakMap<Kernel, Map<string, StatusPoller>>();

/** The feed of a kernel's pool: all that show it share one. */
export function feedOf(kernel: Kernel, pool: string): StatusPoller {
  const known = feeds.get(kernel) ?? new Map<string, StatusPoller>();
  feeds.set(kernel, known);
  const feed = known.get(pool) ?? new StatusPoller(request(kernel), pool);
  known.set(pool, feed);
  return feed;
}

/** How a kernel is asked. */
export function request(kernel: Kernel): Ask {
  return (content: Record<string, unknown>) => {
    const connection = (kernel as { connectionStatus?: string }).connectionStatus;
    if (connection && connection !== "connected") {
      return Promise.reject(new Error("there is no connection to the kernel just now"));
    }
    return ask(kernel, "sky_request", content);
  };
}
