/** Saying once what several ranks have in common. */

import { LineTimes } from "./line-times";

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

// How far back an equal entry of another rank is looked for: further up nobody would see it.
const REACH = 200;
// Of very many ranks, each says some lines of its own before the last has said what all have in common.
const REACH_PER_RANK = 4;

/** How far back an equal entry is looked for among so many ranks. */
export function reachOf(ranks: number): number {
  return Math.max(REACH, REACH_PER_RANK * ranks);
}

/**
 * Numbers the entries of all ranks in the order in which they came. One that another rank has had already is found
 * again, where that keeps the order of each rank's own entries.
 */
export class Numbering {
  /** The number that the next new entry gets. */
  next = 0;
  private readonly keys: string[];
  /** Where each of the last keys stands, the oldest place first. */
  private readonly places = new Map<string, number | number[]>();
  private readonly lastOf = new Map<number, number>();

  constructor(private readonly reach = REACH) {
    this.keys = new Array<string>(reach);
  }

  /** The number of an equal entry that the rank may share; -1 where there is none. */
  find(rank: number, key: string): number {
    const places = this.places.get(key);
    if (places === undefined) {
      return -1;
    }
    const after = this.lastOf.get(rank) ?? -1;
    const found = typeof places === "number" ? places : (places.find((one) => one > after) ?? -1);
    if (found <= after) {
      return -1;
    }
    this.lastOf.set(rank, found);
    return found;
  }

  /** Number a new entry. */
  add(rank: number, key: string): number {
    const at = this.next++;
    const slot = at % this.reach;
    if (at >= this.reach) {
      this.forget(this.keys[slot]);
    }
    this.keys[slot] = key;
    this.lastOf.set(rank, at);
    const places = this.places.get(key);
    if (places === undefined) {
      this.places.set(key, at);
    } else if (typeof places === "number") {
      this.places.set(key, [places, at]);
    } else {
      places.push(at);
    }
    return at;
  }

  private forget(key: string): void {
    const places = this.places.get(key);
    if (typeof places === "number") {
      this.places.delete(key);
    } else if (places && places.length > 2) {
      places.shift();
    } else if (places) {
      this.places.set(key, places[1]);
    }
  }
}

/** Lines of all ranks, each with who said it. A flood brings many: no object is made for one that a single rank said. */
export class FoldedLines {
  private texts: string[] = [];
  private speakers: (number | number[])[] = [];

  /** `first` is the number of the first line; `key` is the same for copies. */
  constructor(
    public first = 0,
    readonly key: object = {},
    private readonly times = new LineTimes(),
  ) {}

  get length(): number {
    return this.texts.length;
  }

  text(index: number): string {
    return this.texts[index];
  }

  ranks(index: number): number[] {
    const who = this.speakers[index];
    return typeof who === "number" ? [who] : who;
  }

  /** The ranks of a line as they are shown. */
  label(index: number): string {
    const who = this.speakers[index];
    return typeof who === "number" ? String(who) : rankNumbers(who);
  }

  /** When a line came; undefined of one that was there before the page. */
  time(index: number): number | undefined {
    return this.times.of(this.first + index);
  }

  /** `time` is when it came, where it comes now. */
  add(rank: number, text: string, time?: number): void {
    if (time !== undefined) {
      this.times.note(this.first + this.length, time);
    }
    this.texts.push(text);
    this.speakers.push(rank);
  }

  /** A rank has said the line with this number too. */
  join(rank: number, number: number): void {
    const index = number - this.first;
    const who = this.speakers[index];
    if (typeof who === "number") {
      this.speakers[index] = [who, rank];
    } else {
      who?.push(rank);
    }
  }

  /** Forget lines at the beginning. */
  drop(count: number): void {
    this.texts.splice(0, count);
    this.speakers.splice(0, count);
    this.first += count;
  }

  /** As it is now; what comes later is not in it. */
  still(): FoldedLines {
    const copy = new FoldedLines(this.first, this.key, this.times);
    copy.texts = this.texts.slice();
    copy.speakers = this.speakers.map((who) => (typeof who === "number" ? who : who.slice()));
    return copy;
  }
}
