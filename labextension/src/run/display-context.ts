/** What the run view needs of where it is shown. */

import type { Item } from "./rank-output";
import type { LogPage } from "./schema";

export type { JournalEvent, LogPage } from "./schema";

/** A pool's panel at a place of the page, which is told when that comes and goes. */
export interface PanelPlace {
  attach(): void;
  detach(): void;
}

export interface Host {
  /** Draw an item into a node; called again with the same node when the item changed. */
  draw(item: Item, node: HTMLElement): void;
  /** Where these are not there, the view is of a saved notebook, or nothing answers. */
  interrupt?(): Promise<string>;
  where?(): Promise<string>;
  log?(rank: number, from: number, count: number, form: "events" | "text"): Promise<LogPage>;
  /** The ranks that lack names which others have, and how these get them. */
  lacking?(): Promise<number[]>;
  copyTo?(ranks: number[]): Promise<string>;
  /** What is to be said of why these are not there. */
  note?: string;
  /** Open the panel of the run's pool in a place. */
  pool?(place: HTMLElement): PanelPlace;
}
