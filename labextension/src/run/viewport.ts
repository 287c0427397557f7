/** What a person looks at: a tab that grows, or that is held still while they read; and which lines of it. */

import type { AllLog } from "./all-ranks";
import { type Block, blocksOfAll, blocksOfRank, type Line, unfinished } from "./filtered-lines";
import type { JournalReader } from "./journal-reader";
import type { RankLog } from "./rank-output";
import type { RunModel } from "./model";
import type { SimilarLines } from "./similar-lines";

/** The tab of all ranks; the others are numbers of ranks. */
export const ALL = -1;

/** Of the chosen tab, what there was when it was held. */
interface Held {
  lines: number;
  gone: number;
  next: number;
  log?: RankLog;
  all?: AllLog;
  open?: Line[];
}

export class Viewport {
  tab = ALL;
  /** Text that lines have to hold, in lower case. */
  filter = "";
  private held: Held | undefined;

  constructor(private readonly model: RunModel) {}

  /** Whether the tab of all ranks is looked at; a run on one rank has none. */
  get ofAll(): boolean {
    return this.tab === ALL && this.model.ranks.length > 1;
  }

  /** The window of the chosen rank. */
  get log(): RankLog | undefined {
    return this.ofAll ? undefined : (this.held?.log ?? this.model.rank(this.tab)?.log);
  }

  /** The journal's number of what follows that window. */
  get next(): number {
    return this.held?.next ?? this.model.rank(this.tab)?.next ?? 0;
  }

  /** How many lines are not in the page. */
  get gone(): number {
    if (this.held) {
      return this.held.gone;
    }
    const logs = this.ofAll ? this.model.ranks.map((rank) => rank.log) : this.log ? [this.log] : [];
    return logs.reduce((sum, log) => sum + log.gone, 0);
  }

  /** How many lines have come since it was held. */
  get fresh(): number {
    return this.held ? this.lines - this.held.lines : 0;
  }

  /** Show another tab, as it grows. */
  choose(tab: number): void {
    this.tab = tab;
    this.release();
  }

  /** From now on nothing moves. */
  hold(): void {
    if (this.held) {
      return;
    }
    const { lines, gone } = this;
    if (this.ofAll) {
      this.held = { lines, gone, next: 0, all: this.model.all.still(), open: unfinished(this.model.ranks) };
    } else if (this.log) {
      this.held = { lines, gone, next: this.next, log: this.log.still() };
    }
  }

  /** Show what has come since, and what comes. */
  release(): void {
    this.held = undefined;
  }

  /** What is to be shown; `history` comes before the window of a rank, `similar` folds lines of all ranks. */
  blocks(history?: JournalReader, similar?: SimilarLines): Block[] {
    if (this.ofAll) {
      const { all = this.model.all, open = unfinished(this.model.ranks) } = this.held ?? {};
      return blocksOfAll(all, open, this.filter, similar);
    }
    return this.log ? blocksOfRank(this.log, this.filter, history) : [];
  }

  /** How many finished lines the chosen tab has had. */
  private get lines(): number {
    const ranks = this.model.ranks.filter((rank) => this.ofAll || rank.rank === this.tab);
    return ranks.reduce((sum, { log }) => sum + log.gone + log.lineCount - (log.last ? 1 : 0), 0);
  }
}
