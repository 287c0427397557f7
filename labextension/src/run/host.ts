/** What the run view needs of where it is shown. */

import type { Item } from "./log";

/** An event of the journal, as pool/pages.py gives it. */
export interface JournalEvent {
  kind: string;
  seq?: number;
  rank?: number;
  name?: string;
  text?: string;
  data?: Record<string, unknown>;
  metadata?: Record<string, unknown>;
  display_id?: string | null;
  wait?: boolean;
  bytes?: number;
  why?: string;
}

export interface LogPage {
  /** The journal's numbers of the first event, of the one after the last, and of the next that will come. */
  from: number;
  next: number;
  end: number;
  events?: JournalEvent[];
  text?: string;
}

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
  /** Open the panel of the run's pool in a place. */
  pool?(place: HTMLElement): PanelPlace;
}
