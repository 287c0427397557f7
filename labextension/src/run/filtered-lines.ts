/** What is to be shown of a log, in order: stretches of lines, of which some may be filtered out, and items. No DOM. */

import { type AllLog, FoldedItems } from "./all-ranks";
import { strip } from "./ansi";
import { fold, rankNumbers } from "./folding";
import type { JournalReader } from "./journal-reader";
import { type RankLog, Shown } from "./rank-output";
import type { Fold, SimilarLines } from "./similar-lines";
import type { Rank } from "./model";
import { Transcript } from "./transcript";

export interface Line {
  /** Whose it is; empty where that needs no saying. */
  label: string;
  text: string;
  /** When the page heard it, in seconds since 1970, where it did. */
  time?: number | undefined;
  /** That time as it is shown beside the line. */
  stamp?: string | undefined;
  /** It is the one that was looked for. */
  marked?: boolean;
  /** In the tab of all ranks: whose it is, and the number that it keeps. */
  ranks?: number[];
  number?: number;
  /** Where similar lines are folded: what stands before it. */
  fold?: Fold | undefined;
}

/** Lines to be shown: `first` is the number of the first one, as lines go from the beginning. */
export interface Lines {
  first: number;
  count: number;
  line(index: number): Line;
}

/** `key` stays the same for what is the same block at the next look; `ranks` are those that show an item, where told. */
export interface Block {
  key: object;
  lines?: Lines;
  shown?: Shown;
  ranks?: number[];
}

/** Those lines of a rank that hold `filter`, which is in lower case, and its items; `history` stands before the window. */
export function blocksOfRank(log: RankLog, filter: string, history?: JournalReader): Block[] {
  if (!history) {
    return log.parts.map((part) => blockOf(part, filter));
  }
  const { part: first, line } = history.mark;
  return [
    ...history.log.parts.map((part) => blockOf(part, filter)),
    blockOf(first, filter, line - first.dropped),
    ...log.parts.slice(log.parts.indexOf(first) + 1).map((part) => blockOf(part, filter)),
  ];
}

/** Those of all ranks, and below them what each is writing just now; `similar` folds lines that differ in numbers. */
export function blocksOfAll(log: AllLog, open: Line[], filter: string, similar?: SimilarLines): Block[] {
  const folded = (key: object, lines: Lines) => ({ key, lines: similar ? similar.fold(key, lines) : lines });
  const blocks: Block[] = [];
  let items: [number[], Shown][] = [];
  const endItems = () => {
    blocks.push(...byRank(items).map(([ranks, shown]) => ({ key: shown, shown, ranks })));
    items = [];
  };
  for (const part of log.parts) {
    if (part instanceof FoldedItems) {
      items.push(...part.apart);
    } else {
      endItems();
      const line = (index: number) => ({
        label: part.label(index),
        text: part.text(index),
        time: part.time(index),
        ranks: part.ranks(index),
        number: part.first + index,
      });
      blocks.push(folded(part.key, linesOf(part.first, part.length, line, filter)));
    }
  }
  endItems();
  if (open.length) {
    blocks.push(folded(log, linesOf(0, open.length, (index) => open[index], filter)));
  }
  return blocks;
}

/** Items between which nothing was printed: the first of each rank in the order of the ranks, then the second ones. */
function byRank(items: [number[], Shown][]): [number[], Shown][] {
  const counts = new Map<number, number>();
  const placed = items.map(([ranks, shown]) => {
    const place = Math.max(...ranks.map((rank) => counts.get(rank) ?? 0));
    ranks.forEach((rank) => counts.set(rank, place + 1));
    return { ranks, shown, place };
  });
  placed.sort((a, b) => a.place - b.place || a.ranks[0] - b.ranks[0]);
  return placed.map(({ ranks, shown }) => [ranks, shown]);
}

/** What each rank has not finished to write, equal lines once. */
export function unfinished(ranks: Rank[]): Line[] {
  const open = ranks.filter((rank) => rank.log.last).map((rank) => [rank.rank, rank.log.last] as [number, string]);
  return fold(open, (text) => text).map(([of, text]) => ({ label: rankNumbers(of), text, ranks: of }));
}

/** The text of blocks, as far as the page has it. */
export function textOf(blocks: Block[]): string {
  const lines: string[] = [];
  for (const { lines: found, shown } of blocks) {
    for (let index = 0; found && index < found.count; index++) {
      const { label, text } = found.line(index);
      lines.push((label ? `[${label.replace(/ /g, "")}] ` : "") + strip(text));
    }
    if (shown) {
      const plain = shown.item.data["text/plain"];
      lines.push(typeof plain === "string" ? plain : Array.isArray(plain) ? plain.join("") : "");
    }
  }
  return lines.join("\n");
}

function blockOf(part: Transcript | Shown, filter: string, start = 0): Block {
  if (part instanceof Shown) {
    return { key: part, shown: part };
  }
  const from = Math.max(0, start);
  const line = (index: number) => ({ label: "", text: part.line(from + index), time: part.time(from + index) });
  return { key: part.key, lines: linesOf(part.dropped + from, part.length - from, line, filter) };
}

function linesOf(first: number, count: number, line: (index: number) => Line, filter: string): Lines {
  if (!filter) {
    return { first, count, line };
  }
  const kept: number[] = [];
  for (let index = 0; index < count; index++) {
    if (strip(line(index).text).toLowerCase().includes(filter)) {
      kept.push(index);
    }
  }
  return { first, count: kept.length, line: (index) => line(kept[index]) };
}
