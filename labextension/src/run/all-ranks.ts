/** What all ranks have shown, in order of arrival; what several have in common stands there once. */

import { fold, FoldedLines, Numbering } from "./folding";
import { MOST_PARTS, Shown, WINDOW } from "./rank-output";

/** Items that were equal when they came; one that changes is shown apart from the others. */
export class FoldedItems {
  constructor(
    readonly first: number,
    readonly members: Shown[],
  ) {}

  add(shown: Shown): void {
    this.members.push(shown);
  }

  /** Those that are to be drawn, each with its ranks. */
  get apart(): [number[], Shown][] {
    const members = [...this.members].sort((a, b) => a.rank - b.rank);
    return members.length === 1
      ? [[[members[0].rank], members[0]]]
      : fold(
          members.map((shown) => [shown.rank, shown] as [number, Shown]),
          (shown) => shown.digest,
        );
  }
}

export class AllLog {
  parts: (FoldedLines | FoldedItems)[] = [];
  private lines = 0;
  private readonly numbers: Numbering;

  /** `reach` says how far back equal entries are looked for. */
  constructor(
    private readonly window = WINDOW,
    private readonly reach?: number,
  ) {
    this.numbers = new Numbering(reach);
  }

  /** `time` is when it came, where it comes now. */
  addLine(rank: number, text: string, time?: number): void {
    const known = this.numbers.find(rank, text);
    if (known >= 0) {
      (this.partOf(known) as FoldedLines | undefined)?.join(rank, known);
      return;
    }
    const at = this.numbers.add(rank, text);
    let part = this.parts[this.parts.length - 1];
    if (!(part instanceof FoldedLines)) {
      part = new FoldedLines(at);
      this.parts.push(part);
    }
    part.add(rank, text, time);
    if (++this.lines > 2 * this.window) {
      this.trim();
    }
  }

  addItem(shown: Shown): void {
    // No line has a zero character.
    const key = `\0${shown.digest}`;
    const known = this.numbers.find(shown.rank, key);
    if (known >= 0) {
      (this.partOf(known) as FoldedItems | undefined)?.add(shown);
      return;
    }
    this.parts.push(new FoldedItems(this.numbers.add(shown.rank, key), [shown]));
    if (this.parts.length > MOST_PARTS) {
      for (const part of this.parts.splice(0, this.parts.length - MOST_PARTS)) {
        this.lines -= part instanceof FoldedLines ? part.length : 0;
      }
    }
  }

  /** As it is now; what comes later is not in it. */
  still(): AllLog {
    const copy = new AllLog(this.window, this.reach);
    copy.parts = this.parts.map((part) => (part instanceof FoldedLines ? part.still() : part));
    return copy;
  }

  /** All but what a rank has shown. */
  without(rank: number): AllLog {
    const rest = new AllLog(this.window, this.reach);
    for (const part of this.parts) {
      if (part instanceof FoldedItems) {
        part.members.filter((shown) => shown.rank !== rank).forEach((shown) => rest.addItem(shown));
        continue;
      }
      for (let index = 0; index < part.length; index++) {
        part
          .ranks(index)
          .filter((one) => one !== rank)
          .forEach((one) => rest.addLine(one, part.text(index), part.time(index)));
      }
    }
    return rest;
  }

  private partOf(number: number): FoldedLines | FoldedItems | undefined {
    for (let index = this.parts.length - 1; index >= 0; index--) {
      if (this.parts[index].first <= number) {
        return this.parts[index];
      }
    }
    return undefined;
  }

  /** Forget the oldest lines, down to the window; items stay. */
  private trim(): void {
    for (const part of this.parts) {
      const gone = part instanceof FoldedLines ? Math.min(part.length, this.lines - this.window) : 0;
      if (gone > 0 && part instanceof FoldedLines) {
        part.drop(gone);
        this.lines -= gone;
      }
    }
    this.parts = this.parts.filter((part) => part instanceof FoldedItems || part.length > 0);
  }
}
