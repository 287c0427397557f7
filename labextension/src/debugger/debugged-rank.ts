/** Which rank the page's debugger debugs, as the notebook's kernel says; docs/actions.md. */

import { FollowedState, text, type Told } from "../run/kernel-state";

// A rank may be busy with code that lets nothing else run for a while.
const PATIENCE = 60_000;
const MOST = 4096;

/** What the selector shows and changes. */
export class DebuggerState extends FollowedState {
  pool = "";
  ranks = 0;
  /** Undefined for the notebook's own kernel. */
  rank: number | undefined;

  constructor(changed: () => void) {
    super("sky_debugger_request", "sky_debugger", changed);
  }

  /** Whether there is anything to select, what there is, and which of it is selected. */
  get texts(): { shown: boolean; entries: string[]; selected: number; caption: string } {
    const ranks = Array.from({ length: this.ranks }, (_, rank) => `Debug: rank ${rank}`);
    return {
      shown: this.ranks > 0,
      entries: ["Debug: notebook", ...ranks],
      selected: this.rank === undefined ? 0 : this.rank + 1,
      caption: `What the debugger debugs: the notebook, or a rank of pool ${this.pool}`,
    };
  }

  /** Debug what this entry says; thrown where that is refused. */
  async select(entry: number): Promise<void> {
    await this.send(entry ? { rank: entry - 1, pool: this.pool } : { rank: null }, PATIENCE);
  }

  protected override read(told: Told): void {
    const rank = count(told.rank);
    this.pool = text(told.pool);
    this.ranks = Math.min(count(told.ranks) ?? 0, MOST);
    this.rank = rank !== undefined && rank < this.ranks ? rank : undefined;
  }
}

function count(value: unknown): number | undefined {
  return Number.isInteger(value) && (value as number) >= 0 ? (value as number) : undefined;
}
