/** Saying once what several ranks have in common. */

/** "0-3, 5". */
export function rankNumbers(ranks: Iterable<number>): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let start = 0, index = 1; index <= sorted.length; index++) {
    if (index === sorted.length || sorted[index] !== sorted[index - 1] + 1) {
      parts.push(index - start > 1 ? `${sorted[start]}-${sorted[index - 1]}` : String(sorted[start]));
      start = index;
    }
  }
  return parts.join(", ");
}

/** "rank 3" or "ranks 0-3, 5". */
export function rankLabel(ranks: Iterable<number>): string {
  const all = [...ranks];
  return `rank${all.length > 1 ? "s" : ""} ${rankNumbers(all)}`;
}

/** The ranks of each equal item, by the lowest rank that has it. */
export function fold<T>(items: Iterable<[number, T]>, key: (item: T) => string): [number[], T][] {
  const groups = new Map<string, [number[], T]>();
  for (const [rank, item] of items) {
    const name = key(item);
    const group = groups.get(name);
    if (group) {
      group[0].push(rank);
    } else {
      groups.set(name, [[rank], item]);
    }
  }
  return [...groups.values()];
}

export interface Entry {
  ranks: number[];
  /** The ranks as they are shown. */
  label: string;
  text: string;
}

// How far back an equal line of another rank is looked for: further up nobody would see it.
const REACH = 200;

/**
 * Lines of all ranks in the order in which they came. A line that another rank has said already
 * is marked with both, where that keeps the order of each rank's own lines.
 */
export class FoldedLines {
  readonly entries: Entry[] = [];
  first = 0;
  private places = new Map<string, number[]>();
  private lastOf = new Map<number, number>();

  constructor(private maxLines = 5000) {}

  add(rank: number, text: string): void {
    const after = Math.max(this.lastOf.get(rank) ?? -1, this.first + this.entries.length - 1 - REACH, this.first - 1);
    const places = this.places.get(text);
    const place = places?.find((one) => one > after);
    if (place !== undefined) {
      const entry = this.entries[place - this.first];
      entry.ranks.push(rank);
      entry.label = rankNumbers(entry.ranks);
      this.lastOf.set(rank, place);
      return;
    }
    const at = this.first + this.entries.length;
    this.entries.push({ ranks: [rank], label: String(rank), text });
    this.lastOf.set(rank, at);
    if (places) {
      places.push(at);
      if (places.length > 2 * REACH) {
        places.splice(0, REACH);
      }
    } else {
      this.places.set(text, [at]);
    }
    if (this.entries.length > 2 * this.maxLines) {
      this.trim();
    }
  }

  private trim(): void {
    const gone = this.entries.length - this.maxLines;
    this.entries.splice(0, gone);
    this.first += gone;
    this.places.clear();
    this.entries.slice(-REACH).forEach((entry, index, tail) => {
      const at = this.first + this.entries.length - tail.length + index;
      const places = this.places.get(entry.text);
      places ? places.push(at) : this.places.set(entry.text, [at]);
    });
  }
}
