/** What one rank, or all of them, has shown: stretches of text and the rich items between them. */

import { Entry, FoldedLines } from "./fold";
import { Streams, Transcript } from "./transcript";

export interface Item {
  data: Record<string, unknown>;
  metadata: Record<string, unknown>;
}

/** An item where it is shown; `version` changes with what it shows. */
export class Shown {
  version = 0;
  ranks: number[];

  constructor(
    public item: Item,
    rank: number,
    readonly ids: Set<string> = new Set(),
  ) {
    this.ranks = [rank];
  }
}

/** Where in the window, by its part and line, an event of the journal begins. */
export interface Mark {
  part: Transcript;
  line: number;
  seq: number;
}

export const WINDOW = 5000;
const MOST_PARTS = 400;

export class RankLog {
  parts: (Transcript | Shown)[] = [];
  /** Lines before the first part. */
  dropped = 0;
  marks: Mark[] = [];
  private clearNext = false;
  private streams = new Streams();

  constructor(
    readonly rank: number,
    private window = WINDOW,
  ) {}

  /** Take what comes before all else: what a snapshot holds. */
  load(
    parts: { text?: string; item?: number; ids?: string[] }[],
    items: Item[],
    dropped: number,
    stream: string,
  ): void {
    this.dropped = dropped;
    this.streams = new Streams(stream === "stdout" ? 0 : stream === "stderr" ? 1 : -1);
    for (const part of parts) {
      if (part.text !== undefined) {
        const transcript = new Transcript(this.window);
        transcript.feed(part.text);
        this.parts.push(transcript);
      } else if (part.item !== undefined && items[part.item]) {
        this.parts.push(new Shown(items[part.item], this.rank, new Set(part.ids)));
      }
    }
  }

  get lineCount(): number {
    return this.parts.reduce((sum, part) => sum + (part instanceof Transcript ? part.length : 0), 0);
  }

  /** The unfinished line; empty where there is none. */
  get last(): string {
    const part = this.parts[this.parts.length - 1];
    return part instanceof Transcript ? part.last : "";
  }

  /** How many lines are not in the window. */
  get gone(): number {
    return this.parts.reduce((sum, part) => sum + (part instanceof Transcript ? part.dropped : 0), this.dropped);
  }

  feed(stream: number, text: string, skipped: number, seq: number, onLine?: (line: string) => void): void {
    this.cleared();
    if (skipped > 0) {
      // The window has no holes: what is before one is read from the journal again.
      // A line that is not finished is finished by what was passed over.
      const gone = this.gone + this.lineCount - (this.last ? 1 : 0) + skipped;
      this.parts = this.parts.filter((part) => part instanceof Shown);
      this.dropped = gone;
      this.marks = [];
    }
    let part = this.parts[this.parts.length - 1];
    if (!(part instanceof Transcript)) {
      part = new Transcript(this.window);
      this.parts.push(part);
      this.limit();
    }
    const [fresh, rest] = this.streams.next(stream, text, part.open);
    if (fresh) {
      part.endLine(onLine);
    }
    if (seq >= 0 && !part.open) {
      this.marks.push({ part, line: part.dropped + part.length, seq });
      if (this.marks.length > 4096) {
        this.marks.splice(0, 2048);
      }
    }
    const before = part.dropped;
    part.feed(rest, onLine);
    if (part.dropped > before && this.parts.length > 1) {
      this.closeHole(part);
    }
  }

  /** The window has no hole in its middle: where a stretch lost its beginning, the text before it goes; items stay. */
  private closeHole(part: Transcript): void {
    this.parts = this.parts.filter((one) => {
      const goes = one instanceof Transcript && one !== part;
      this.dropped += goes ? one.dropped + one.length : 0;
      return !goes;
    });
  }

  /** A mark of the window's end, where the journal's event `seq` will begin. */
  end(seq: number): Mark {
    let part = this.parts[this.parts.length - 1];
    if (!(part instanceof Transcript)) {
      part = new Transcript(this.window);
      this.parts.push(part);
    }
    return { part, line: part.dropped + part.length, seq };
  }

  show(item: Item, id: string | null): Shown {
    this.cleared();
    const shown = new Shown(item, this.rank, new Set(id ? [id] : []));
    this.parts.push(shown);
    this.limit();
    return shown;
  }

  update(id: string, item: Item): Shown[] {
    const found = this.parts.filter((part): part is Shown => part instanceof Shown && part.ids.has(id));
    for (const shown of found) {
      shown.item = item;
      shown.version += 1;
    }
    return found;
  }

  clear(wait: boolean): void {
    this.clearNext = true;
    if (!wait) {
      this.cleared();
    }
  }

  private cleared(): void {
    if (this.clearNext) {
      this.clearNext = false;
      this.parts = [];
      this.marks = [];
      this.dropped = 0;
    }
  }

  /** A page cannot hold items without end: the oldest parts go. */
  private limit(): void {
    while (this.parts.length > MOST_PARTS) {
      const part = this.parts.shift();
      this.dropped += part instanceof Transcript ? part.length + part.dropped : 0;
    }
  }

  /** All lines and items in order, as the log of all ranks takes them. */
  *sequence(): Iterable<string | Shown> {
    for (const part of this.parts) {
      if (part instanceof Shown) {
        yield part;
      } else {
        const count = part.length - (part.open ? 1 : 0);
        for (let index = 0; index < count; index++) {
          yield part.line(index);
        }
      }
    }
  }
}

export class AllLog {
  parts: (FoldedLines | Shown)[] = [];

  addLine(rank: number, text: string): void {
    let part = this.parts[this.parts.length - 1];
    if (!(part instanceof FoldedLines)) {
      part = new FoldedLines(WINDOW);
      this.parts.push(part);
    }
    part.add(rank, text);
  }

  addItem(shown: Shown): void {
    this.parts.push(shown);
    if (this.parts.length > MOST_PARTS) {
      this.parts.splice(0, this.parts.length - MOST_PARTS);
    }
  }
}

export type { Entry };
