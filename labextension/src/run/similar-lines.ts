/** Lines that differ only in their numbers, as one line with the range of each number. No DOM. */

import { ESCAPE } from "./ansi";
import type { Line, Lines } from "./filtered-lines";
import { rankNumbers } from "./folding";

/** What stands before a line where such lines are folded; `turn` shows or hides the lines themselves. */
export interface Fold {
  text: string;
  name: string;
  open: boolean;
  turn?: () => void;
}

// How far up a line is looked for that another one is folded into: further up nobody would see it.
const REACH = 200;
// A longer line is no line of a log: it stands by itself.
const MOST_LETTERS = 1000;
// Lines whose numbers are known: a page holds 10,000 at most.
const MOST_KNOWN = 40_000;
const NUMBER = "[-+]?(?:\\d{1,3}(?:,\\d{3})+(?![\\d,])(?:\\.\\d+)?|\\d+(?:\\.\\d+)?(?:[eE][-+]?\\d+(?!\\w))?)";
// The digits of a colour's code are none of the text.
const TOKEN = new RegExp(`${ESCAPE}|(${NUMBER})`, "g");
// In the place of a number; no line has it.
const SLOT = "\0";
/** Before a line that is not folded. */
export const NOTHING: Fold = { text: "", name: "", open: false };
const MEMBER: Fold = { text: "│", name: "", open: false };

/** A line's text without its numbers, and these as they are written and as values. */
export interface Parsed {
  text: string;
  pattern: string;
  words: string[];
  values: number[];
}

export function parse(text: string): Parsed {
  const words: string[] = [];
  if (text.length > MOST_LETTERS || !/\d/.test(text)) {
    return { text, pattern: text, words, values: [] };
  }
  const pattern = text.replace(TOKEN, (whole: string, _codes, _kind, number: string | undefined, at: number) => {
    if (number === undefined) {
      return whole;
    }
    // In "0-7" it is no sign.
    const joined = /^[-+]/.test(number) && /[\w.)\]]/.test(text[at - 1] ?? "");
    words.push(joined ? number.slice(1) : number);
    return joined ? number[0] + SLOT : SLOT;
  });
  return { text, pattern, words, values: words.map((word) => Number(word.replaceAll(",", ""))) };
}

/** The text of lines with one pattern: a number that is not the same in all as "0.31 to 0.34". */
export function rangeText(lines: Parsed[]): string {
  const pieces = lines[0].pattern.split(SLOT);
  return pieces.reduce((whole, piece, index) => whole + range(lines, index - 1) + piece);
}

function range(lines: Parsed[], slot: number): string {
  let [low, high] = [lines[0], lines[0]];
  for (const line of lines) {
    low = line.values[slot] < low.values[slot] ? line : low;
    high = line.values[slot] > high.values[slot] ? line : high;
  }
  const same = low.values[slot] === high.values[slot];
  return same ? lines[0].words[slot] : `${low.words[slot]} to ${high.words[slot]}`;
}

/** Lines of one pattern, by their places among all. */
interface Group {
  members: number[];
}

/**
 * The numbers of lines that are folded, so that each page of one has the order of each rank's own lines: a line goes
 * into a group that is not above the one of its ranks' last lines, and near the end.
 */
export function group(count: number, patternOf: (index: number) => string, ranksOf: (index: number) => number[]): Group[] {
  const groups: Group[] = [];
  const places = new Map<string, number[]>();
  const lastOf = new Map<number, number>();
  for (let index = 0; index < count; index++) {
    const pattern = patternOf(index);
    const ranks = ranksOf(index);
    const after = ranks.reduce((most, rank) => Math.max(most, lastOf.get(rank) ?? -1), -1);
    const known = places.get(pattern) ?? [];
    while (known.length && groups.length - known[0] > REACH) {
      known.shift();
    }
    // A line without a number differs from none.
    let at = pattern.includes(SLOT) ? (known.find((place) => place >= after) ?? -1) : -1;
    if (at < 0) {
      at = groups.length;
      groups.push({ members: [] });
      known.push(at);
      places.set(pattern, known);
    }
    groups[at].members.push(index);
    ranks.forEach((rank) => lastOf.set(rank, at));
  }
  return groups;
}

export class SimilarLines {
  /** Of each stretch, the groups that are open, by the number of their first line. */
  private readonly opened = new WeakMap<object, Set<number>>();
  private readonly known = new WeakMap<object, Map<number, Parsed>>();

  /** Whether any lines have been folded since this was unset. */
  any = false;

  /** `turned` is told when a person has shown or hidden lines. */
  constructor(private readonly turned: () => void) {}

  /** The lines of a stretch, those that are similar as one. */
  fold(key: object, lines: Lines): Lines {
    const open = this.of(this.opened, key, () => new Set<number>());
    const known = this.of(this.known, key, () => new Map<number, Parsed>());
    if (known.size > MOST_KNOWN) {
      known.clear();
    }
    const all = Array.from({ length: lines.count }, (_, index) => lines.line(index));
    const parsed = all.map((line, index) => {
      const number = line.number ?? index;
      let found = known.get(number);
      if (found?.text !== line.text) {
        found = parse(line.text);
        known.set(number, found);
      }
      return found;
    });
    const groups = group(lines.count, (index) => parsed[index].pattern, (index) => all[index].ranks ?? []);
    this.any ||= groups.length < lines.count;
    // Of each row its group, and the member that it shows; -1 for what they have in common.
    const rows: [Group, number][] = [];
    for (const one of groups) {
      rows.push([one, one.members.length > 1 ? -1 : one.members[0]]);
      if (one.members.length > 1 && open.has(all[one.members[0]].number ?? one.members[0])) {
        one.members.forEach((member) => rows.push([one, member]));
      }
    }
    const line = (row: number): Line => {
      const [{ members }, member] = rows[row];
      if (member >= 0) {
        return { ...all[member], fold: members.length > 1 ? MEMBER : NOTHING };
      }
      const first = all[members[0]];
      const number = first.number ?? members[0];
      return {
        label: rankNumbers(members.flatMap((index) => all[index].ranks ?? [])),
        text: rangeText(members.map((index) => parsed[index])),
        time: first.time,
        fold: this.header(open, number, members.length),
      };
    };
    // As what goes at the top is no row each, none is counted.
    return { first: 0, count: rows.length, line };
  }

  private header(open: Set<number>, number: number, count: number): Fold {
    const on = open.has(number);
    const turn = () => {
      if (!open.delete(number)) {
        open.add(number);
      }
      this.turned();
    };
    const name = `${on ? "Hide" : "Show"} ${count.toLocaleString("en")} similar lines`;
    return { text: `${on ? "▾" : "▸"} ${count}`, name, open: on, turn };
  }

  private of<T>(map: WeakMap<object, T>, key: object, make: () => T): T {
    const found = map.get(key) ?? make();
    map.set(key, found);
    return found;
  }
}
