/** Scrolling back: what a rank showed before the page's window, read from the journal as it is asked for. */

import type { Host, JournalEvent, LogPage } from "./display-context";
import { type Mark, RankLog } from "./rank-output";

const STEP = 500;
const ENOUGH_LINES = 500;
const MOST_LINES = 200_000;

export class JournalReader {
  log: RankLog;
  private events: JournalEvent[] = [];
  private from: number;

  readonly mark: Mark;

  /** What comes before the first mark of a window, which is its end where it has none; `next` follows the window. */
  constructor(
    private window: RankLog,
    next: number,
    private host: Host,
  ) {
    this.mark = firstMark(window) ?? window.end(next);
    this.from = this.mark.seq;
    this.log = new RankLog(window.rank, MOST_LINES);
  }

  /** Whether there is more before it. */
  get more(): boolean {
    return this.from > 0;
  }

  /** Whether it still reaches up to a window: a flood moves that away. */
  fits(window: RankLog): boolean {
    const mark = this.mark;
    return mark.part.dropped <= mark.line && window.parts.includes(mark.part);
  }

  /** Read the part before what is there; how many lines have come. */
  async load(): Promise<number> {
    const before = this.log.lineCount;
    let fresh: JournalEvent[] = [];
    while (this.from > 0) {
      const start = Math.max(0, this.from - STEP);
      fresh = [...(await this.read(start, this.from)), ...fresh];
      this.from = start;
      if (fresh.reduce((sum, event) => sum + (event.text?.split("\n").length ?? 1), 0) >= ENOUGH_LINES) {
        break;
      }
    }
    this.events = [...fresh, ...this.events];
    this.log = new RankLog(this.window.rank, MOST_LINES);
    for (const event of this.events) {
      play(event, this.log);
    }
    return this.log.lineCount - before;
  }

  private async read(start: number, stop: number): Promise<JournalEvent[]> {
    const found: JournalEvent[] = [];
    for (let at = start; at < stop;) {
      const page = await (this.host.log as NonNullable<Host["log"]>)(this.window.rank, at, stop - at, "events");
      found.push(...(page.events ?? []).filter((event) => event.seq === undefined || event.seq < stop));
      if (page.next <= at) {
        break;
      }
      at = page.next;
    }
    return found;
  }
}

/** The first mark that the window still holds. */
export function firstMark(log: RankLog): Mark | undefined {
  return log.marks.find((mark) => log.parts.includes(mark.part) && mark.line >= mark.part.dropped);
}

/** Give a log what an event of the journal says. */
export function play(event: JournalEvent, log: RankLog): void {
  const item = { data: event.data ?? {}, metadata: event.metadata ?? {} };
  if (event.kind === "stream") {
    log.feed(event.name === "stderr" ? 1 : 0, event.text ?? "", 0, -1);
  } else if (event.kind === "display") {
    log.show(item, event.display_id ?? null);
  } else if (event.kind === "update" && event.display_id) {
    log.update(event.display_id, item);
  } else if (event.kind === "clear") {
    log.clear(event.wait === true);
  } else if (event.kind === "gap") {
    log.feed(1, `… ${event.bytes ?? 0} bytes of output dropped (${event.why ?? "it is not known why"}) …\n`, 0, -1);
  }
}

/** All that a rank has printed by now, page by page, as text. */
export async function wholeLog(host: Host, rank: number): Promise<string> {
  const parts: string[] = [];
  let stop = Infinity;
  for (let at = 0; ;) {
    const page: LogPage = await (host.log as NonNullable<Host["log"]>)(rank, at, Math.min(5000, stop - at), "text");
    parts.push(page.text ?? "");
    // A flood may go on as fast as it is read.
    stop = Math.min(stop, page.end);
    if (page.next <= at || page.next >= stop) {
      return parts.join("");
    }
    at = page.next;
  }
}
