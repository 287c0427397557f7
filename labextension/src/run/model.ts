/** A run as a page knows it: a snapshot, and the deltas that come after it. Pure: no DOM, no kernel. */

import { AllLog } from "./all-ranks";
import { type Item, RankLog, Shown, WINDOW, windowOf } from "./rank-output";
import { reachOf } from "./folding";
import * as progress from "./parse-progress";
import type { Delta, Entry, Snapshot, State } from "./schema";
import { type Cost, costText } from "../page/cost";
import { TROUBLES } from "./run-status";
import { widgetOf } from "./widgets";

export { type Delta, MIME, type Snapshot, type State } from "./schema";

const ITEM = -1;
const MOST_WIDGETS = 20;

/** Gives the bar that a widget is, by its id. */
type WidgetBar = (id: string) => progress.Progress | undefined;

export class Rank {
  state: State = "running";
  note = "";
  traceback = "";
  /** Its place among the ranks in the order in which their ends were told; 0 of one that had ended before the page. */
  ended = 0;
  result: Shown | undefined;
  /** The journal's number of what comes next, as far as it is known. */
  next = 0;
  log: RankLog;
  private heading = "";
  private bar: progress.Progress | undefined;
  /** Those that it has shown last, by their ids. */
  private widgets: string[] = [];

  /** `widgetBar` gives the bar of a widget, where it is one. */
  constructor(
    readonly rank: number,
    private readonly widgetBar: WidgetBar = () => undefined,
    window?: number,
  ) {
    this.log = new RankLog(rank, window);
  }

  /** How it fares, and what is to be said of its end. */
  end(state: State, note = "", traceback = ""): void {
    this.state = state;
    this.note = note;
    this.traceback = traceback;
  }

  /** In a word what it waits for of the user, such as "asks"; empty where it waits for nothing. */
  get waits(): string {
    return this.state === "running" ? this.note : "";
  }

  /** The bar that runs; undefined where none does. */
  get progress(): progress.Progress | undefined {
    const found = progress.ofLine(this.log.last) ?? this.ofWidgets() ?? this.bar;
    if (!found || (progress.fraction(found) >= 1 && this.state !== "running")) {
      return undefined;
    }
    return found.label || !this.heading ? found : { ...found, label: this.heading };
  }

  /** Of the widgets that are bars, the outermost one that runs, as a loop in a loop shows the inner one later. */
  private ofWidgets(): progress.Progress | undefined {
    return this.widgets.map((id) => this.widgetBar(id)).find((bar) => bar !== undefined);
  }

  noteLine(line: string): void {
    if (line.length < 200 && line.includes("/")) {
      this.heading = progress.heading(line) ?? this.heading;
    }
  }

  noteItem(item: Item): void {
    const widget = widgetOf(item);
    if (widget !== undefined && !this.widgets.includes(widget)) {
      this.widgets = [...this.widgets, widget].slice(-MOST_WIDGETS);
    }
    const html = item.data["text/html"];
    if (typeof html === "string" && html.includes("<progress")) {
      const bar = progress.ofHtml(html);
      // Nothing ends such a bar but its own last value: it would stand there for the rest of the cell.
      this.bar = bar && progress.fraction(bar) < 1 ? bar : undefined;
    }
  }
}

/** What has become of the ranks of a run that nobody tells more of. */
export type Fate = "stopped" | "continues" | "unknown";

export class RunModel {
  view = "";
  run = "";
  pool = "";
  title = "";
  finished = false;
  notices: string[] = [];
  /** How many ends of ranks have been told. */
  private ends = 0;
  /** Those whose output is shown, and the others that it runs on. */
  ranks: Rank[] = [];
  unseen: Rank[] = [];
  all = new AllLog();
  number = -1;
  /** It was not over when it was last heard of, and nobody can tell how it went on. */
  unknown = false;
  /** Set by who hears of widgets. */
  widgetBar: WidgetBar = () => undefined;
  /** Rises with each change. */
  version = 0;
  private byRank = new Map<number, Rank>();
  private began = 0;
  private elapsedAtEnd = 0;
  private heard = 0;
  private cost: Cost | undefined;
  /** When the cost was told. */
  private costed = 0;

  /** `clock` gives seconds. */
  constructor(private clock: () => number = () => performance.now() / 1000) {}

  get elapsed(): number {
    return this.finished ? this.elapsedAtEnd : this.clock() - this.began;
  }

  /** Seconds since something came. */
  get idle(): number {
    return this.finished ? 0 : this.clock() - this.heard;
  }

  /** What the pool costs; empty where nothing is bought. */
  get costText(): string {
    return this.cost ? costText(this.cost, this.finished ? 0 : this.clock() - this.costed) : "";
  }

  get state(): State {
    const worst = TROUBLES.find((one) => this.every.some((rank) => rank.state === one));
    return worst ?? (this.isRunning ? "running" : "done");
  }

  /** Whether the run goes on, though its view may be over: nobody waits for its end there any more. */
  get isRunning(): boolean {
    return !this.finished || this.every.some((rank) => rank.state === "running");
  }

  /** All ranks that it runs on. */
  get every(): Rank[] {
    return this.unseen.length ? [...this.ranks, ...this.unseen].sort((a, b) => a.rank - b.rank) : this.ranks;
  }

  rank(number: number): Rank | undefined {
    return this.byRank.get(number);
  }

  /** Begin anew from a snapshot. */
  load(snapshot: Snapshot): void {
    const now = this.clock();
    this.view = snapshot.view;
    this.run = snapshot.run ?? "";
    this.pool = snapshot.pool ?? "";
    this.title = snapshot.title;
    this.finished = snapshot.finished;
    this.unknown = snapshot.unknown ?? false;
    this.elapsedAtEnd = snapshot.elapsed;
    this.began = now - snapshot.elapsed;
    this.heard = now - snapshot.idle;
    this.notices = [...snapshot.notices];
    this.number = snapshot.number ?? -1;
    this.cost = undefined;
    this.price(snapshot.cost);
    this.ranks = [];
    this.byRank.clear();
    this.all = new AllLog(WINDOW, reachOf(snapshot.ranks.length));
    const window = windowOf(snapshot.ranks.length);
    for (const one of snapshot.ranks) {
      const rank = new Rank(one.rank, (id) => this.widgetBar(id), window);
      rank.log.load(one.parts, snapshot.items, one.dropped ?? 0, one.stream ?? "");
      rank.end(one.state, one.note, one.traceback);
      rank.next = one.next ?? 0;
      rank.result = one.result === undefined ? undefined : new Shown(snapshot.items[one.result], one.rank);
      this.ranks.push(rank);
      this.byRank.set(one.rank, rank);
    }
    this.unseen = (snapshot.unseen ?? []).map((one) => {
      const rank = new Rank(one.rank);
      rank.end(one.state, one.note, one.traceback);
      this.byRank.set(one.rank, rank);
      return rank;
    });
    this.loadAll(snapshot.order);
    this.version += 1;
  }

  /** Nobody will tell more of it: its ranks were stopped, or go on where no page sees it, or that is not known. */
  end(notice: string, fate: Fate): void {
    this.elapsedAtEnd = this.elapsed;
    if (this.cost) {
      const more = ((this.cost.hourly ?? 0) * (this.clock() - this.costed)) / 3600;
      this.price({ ...this.cost, total: this.cost.total === null ? null : this.cost.total + more });
    }
    this.finished = true;
    this.notices.push(notice);
    this.unknown = fate === "unknown";
    for (const rank of fate !== "stopped" ? [] : this.every.filter((one) => one.state === "running")) {
      rank.state = "interrupted";
    }
    this.version += 1;
  }

  /** Put the lines of all ranks in the order in which they came. */
  private loadAll(order: number[]): void {
    const left = new Map<number, (string | Shown)[]>();
    const spare = new Map<number, number>();
    for (const rank of this.ranks) {
      const sequence = [...rank.log.sequence()];
      for (const entry of sequence) {
        typeof entry === "string" ? rank.noteLine(entry) : rank.noteItem(entry.item);
      }
      left.set(rank.rank, sequence);
      spare.set(rank.rank, -sequence.length);
    }
    for (let at = 0; at + 1 < order.length; at += 2) {
      const count = order[at + 1] === ITEM ? 1 : order[at + 1];
      spare.set(order[at], (spare.get(order[at]) ?? 0) + count);
    }
    const places = new Map<number, number>();
    const take = (rank: number, count: number) => {
      const entries = left.get(rank);
      for (; entries && count > 0; count--) {
        const place = places.get(rank) ?? 0;
        if (place >= entries.length) {
          return;
        }
        places.set(rank, place + 1);
        this.addToAll(rank, entries[place]);
      }
    };
    // What the order does not reach came first.
    for (const [rank, more] of spare) {
      take(rank, -more);
    }
    for (let at = 0; at + 1 < order.length; at += 2) {
      const rank = order[at];
      let count = order[at + 1] === ITEM ? 1 : order[at + 1];
      // The order may know of lines that are not kept.
      const gone = Math.min(count, Math.max(0, spare.get(rank) ?? 0));
      spare.set(rank, (spare.get(rank) ?? 0) - gone);
      count -= gone;
      take(rank, count);
    }
    for (const rank of this.ranks) {
      take(rank.rank, Infinity);
    }
  }

  private addToAll(rank: number, entry: string | Shown, time?: number): void {
    if (this.ranks.length < 2) {
      return;
    }
    if (typeof entry === "string") {
      this.all.addLine(rank, entry, time);
    } else {
      this.all.addItem(entry);
    }
  }

  /**
   * Take a delta. False where one is missing before it: a new snapshot has to be asked for; one that
   * is known already is passed over.
   */
  apply(delta: Delta, buffer: DataView | undefined): boolean {
    if (delta.number <= this.number) {
      return true;
    }
    if (delta.number !== this.number + 1) {
      return false;
    }
    this.number = delta.number;
    this.run = delta.run || this.run;
    if (delta.entries.some((entry) => entry[0] !== "n")) {
      // What the pool says of a run is no word of its ranks.
      this.heard = this.clock();
    }
    this.version += 1;
    this.price(delta.cost);
    let offset = buffer?.byteOffset ?? 0;
    const decoder = new TextDecoder();
    for (const entry of delta.entries) {
      let text = "";
      if (entry[0] === "s" && buffer) {
        // A buffer is a part of a larger one.
        text = decoder.decode(new Uint8Array(buffer.buffer, offset, entry[3]));
        offset += entry[3];
      }
      this.take(entry, text);
    }
    for (const [number, next] of delta.next ?? []) {
      const rank = this.byRank.get(number);
      if (rank) {
        rank.next = next;
      }
    }
    return true;
  }

  private price(cost: Cost | null | undefined): void {
    if (cost) {
      this.cost = cost;
      this.costed = this.clock();
    }
  }

  private take(entry: Entry, text: string): void {
    if (entry[0] === "n") {
      this.notices.push(entry[1]);
      return;
    }
    if (entry[0] === "over") {
      this.finished = true;
      this.elapsedAtEnd = entry[1];
      this.price(entry[2]);
      return;
    }
    const rank = this.byRank.get(entry[1]);
    if (!rank) {
      return;
    }
    if (entry[0] === "c" ? !entry[2] : rank.log.clears && (entry[0] === "s" || entry[0] === "d")) {
      this.all = this.all.without(rank.rank);
    }
    if (entry[0] === "s") {
      const time = Date.now() / 1000;
      const onLine = (line: string) => {
        rank.noteLine(line);
        this.addToAll(rank.rank, line, time);
      };
      rank.log.feed(entry[2], text, entry[4], entry[5], onLine, time);
    } else if (entry[0] === "d") {
      const item = { data: entry[3], metadata: entry[4] };
      rank.noteItem(item);
      this.addToAll(rank.rank, rank.log.show(item, entry[2] ?? null));
    } else if (entry[0] === "u") {
      const item = { data: entry[3], metadata: entry[4] };
      rank.noteItem(item);
      rank.log.update(entry[2], item);
    } else if (entry[0] === "c") {
      rank.log.clear(entry[2]);
    } else if (entry[0] === "r") {
      rank.result = new Shown({ data: entry[2], metadata: entry[3] }, rank.rank);
    } else {
      const { state, note, traceback } = entry[2];
      rank.ended = ++this.ends;
      rank.end(state, note, traceback);
    }
  }
}
