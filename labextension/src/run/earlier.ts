/** What came before the page's window: how much of it there is, the button that reads it, and what has been read. */

import { ALL } from "./blocks";
import { make, say } from "./dom";
import { History } from "./history";
import type { Host } from "./host";
import type { Rank, RunModel } from "./model";

export class Earlier {
  readonly node = make("button", "sky-earlier", { type: "button" });
  loading = false;
  private readonly read = new Map<number, History>();

  /** Forget what has been read. */
  reset(): void {
    this.read.clear();
  }

  /** What has been read of a rank, where it still reaches up to the window. */
  of(rank: Rank | undefined): History | undefined {
    const history = rank && this.read.get(rank.rank);
    if (rank && history && !history.fits) {
      this.read.delete(rank.rank);
      return undefined;
    }
    return history;
  }

  /** Whether there is more to be had by scrolling up. */
  get more(): boolean {
    return !this.node.hidden && !this.node.disabled;
  }

  draw(model: RunModel, host: Host, tab: number): void {
    const rank = tab === ALL ? undefined : model.rank(tab);
    const history = this.of(rank);
    const gone = rank ? (history ? 0 : rank.log.gone) : model.ranks.reduce((sum, one) => sum + one.log.gone, 0);
    const can = rank !== undefined && host.log !== undefined && model.run !== "";
    this.node.hidden = !(history ? history.more : gone > 0);
    this.node.disabled = !can || this.loading;
    if (!this.node.hidden) {
      say(this.node, this.words(gone, rank !== undefined, can));
    }
  }

  /** Read the next part of a rank; what cannot be read is thrown. */
  async load(rank: Rank, host: Host): Promise<void> {
    const history = this.of(rank) ?? new History(rank, host);
    await history.load();
    this.read.set(rank.rank, history);
  }

  private words(gone: number, ofOne: boolean, can: boolean): string {
    const count = gone.toLocaleString("en");
    if (this.loading) {
      return "reading earlier lines …";
    }
    if (can) {
      return `▲ show earlier lines${gone ? ` (${count} before these)` : ""}`;
    }
    return ofOne
      ? `… ${count} earlier lines left out; result.stdout(rank) has all of them`
      : `… ${count} earlier lines; each rank's tab leads to its own`;
  }
}
