/** What one rank has shown: stretches of text and the rich items between them. */

import { Streams, Transcript } from "./transcript";

export interface Item {
  data: Record<string, unknown>;
  metadata: Record<string, unknown>;
}

/** An item of a rank where it is shown; `version` changes with what it shows. */
export class Shown {
  version = 0;
  private known: [number, string] = [-1, ""];

  constructor(
    public item: Item,
    readonly rank: number,
    readonly ids: Set<string> = new Set(),
  ) {}

  /** The same for items that look the same. */
  get digest(): string {
    if (this.known[0] !== this.version) {
      this.known = [this.version, digest(JSON.stringify([this.item.data, this.item.metadata]))];
    }
    return this.known[1];
  }

  change(item: Item): void {
    this.item = item;
    this.version += 1;
  }
}

/** A short text that two different ones have in common by an unlikely chance only; pictures are long to be kept twice. */
function digest(text: string): string {
  let [one, two] = [0xdeadbeef, 0x41c6ce57];
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    one = Math.imul(one ^ code, 2654435761);
    two = Math.imul(two ^ code, 1597334677);
  }
  return `${text.length}:${one >>> 0}:${two >>> 0}`;
}

/** Where in the window, by its part and line, an event of the journal begins. */
export interface Mark {
  part: Transcript;
  line: number;
  seq: number;
}

export const WINDOW = 5000;
// With more ranks than this each has a part of what so many have. As display/model/saved_output.py.
const WHOLE_WINDOWS = 64;
const LEAST_WINDOW = 200;
export const MOST_PARTS = 400;

/** How many of the last lines a page keeps of each of so many ranks; the journal has the others. */
export function windowOf(ranks: number): number {
  return Math.max(LEAST_WINDOW, Math.min(WINDOW, Math.floor((WINDOW * WHOLE_WINDOWS) / Math.max(1, ranks))));
}

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

  /** `time` is when it came, where it comes now. */
  feed(stream: number, text: string, skipped: number, seq: number, onLine?: (line: string) => void, time?: number): void {
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
    if (this.streams.changes(stream)) {
      part.dropBlank();
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
    if (time !== undefined) {
      part.noteTime(time);
    }
    part.feed(rest, onLine, stream === 1);
    if (this.parts.length > 1 && (part.dropped > before || this.lineCount > 2 * this.window)) {
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

  /** As it is now; what comes later is not in it. */
  still(): RankLog {
    const copy = new RankLog(this.rank, this.window);
    const copies = new Map(this.parts.map((part) => [part, part instanceof Transcript ? part.still() : part]));
    copy.parts = [...copies.values()];
    copy.dropped = this.dropped;
    copy.marks = this.marks
      .filter((mark) => copies.has(mark.part))
      .map((mark) => ({ ...mark, part: copies.get(mark.part) as Transcript }));
    return copy;
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
      shown.change(item);
    }
    return found;
  }

  /** Forget all that there is: at once, or with what comes next. */
  clear(wait: boolean): void {
    this.clearNext = true;
    if (!wait) {
      this.cleared();
    }
  }

  /** Whether what comes next replaces all that there is. */
  get clears(): boolean {
    return this.clearNext;
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
