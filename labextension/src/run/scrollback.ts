/** What came before the page's window: how much of it there is, the button that reads it, and what has been read. */

import { make, say } from "./dom";
import { JournalReader } from "./journal-reader";
import type { Host } from "./display-context";
import type { RankLog } from "./rank-output";
import type { Viewport } from "./viewport";

export class Scrollback {
  readonly node = make("button", "sky-earlier", { type: "button" });
  loading = false;
  private readonly read = new Map<number, JournalReader>();

  /** Forget what has been read. */
  reset(): void {
    this.read.clear();
  }

  /** What has been read of a rank, where it still reaches up to the window. */
  of(window: RankLog | undefined): JournalReader | undefined {
    const history = window && this.read.get(window.rank);
    if (window && history && !history.fits(window)) {
      this.read.delete(window.rank);
      return undefined;
    }
    return history;
  }

  /** Whether there is more to be had by scrolling up. */
  get more(): boolean {
    return !this.node.hidden && !this.node.disabled;
  }

  /** `known` says whether the run is one that journals know. */
  draw(sight: Viewport, host: Host, known: boolean): void {
    const history = this.of(sight.log);
    const gone = history ? 0 : sight.gone;
    const can = sight.log !== undefined && host.log !== undefined && known;
    this.node.hidden = !(history ? history.more : gone > 0);
    this.node.disabled = !can || this.loading;
    if (!this.node.hidden) {
      say(this.node, this.words(gone, sight.log !== undefined, can));
    }
  }

  /** Read the next part of a rank; what cannot be read is thrown. */
  async load(window: RankLog, next: number, host: Host): Promise<void> {
    const history = this.of(window) ?? new JournalReader(window, next, host);
    await history.load();
    this.read.set(window.rank, history);
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
