/** What a tab shows, in order: stretches of lines, of which some may be filtered out, and rich items. No DOM. */

import { escaped, strip, toHtml } from "./ansi";
import { fold, FoldedLines, rankLabel } from "./fold";
import type { History } from "./history";
import { Shown } from "./log";
import type { RunModel } from "./model";
import { Transcript } from "./transcript";

/** The tab of all ranks; the others are numbers of ranks. */
export const ALL = -1;

/** Lines to be shown: `first` is the number of the first one, as lines go from the beginning. */
export interface Lines {
  first: number;
  count: number;
  html(index: number): string;
  text(index: number): string;
}

/** `key` stays the same for what is the same block at the next look. */
export interface Block {
  key: object;
  lines?: Lines;
  shown?: Shown;
}

interface Line {
  label: string;
  text: string;
}

/** The blocks of a tab, with the lines that hold `filter`, which is in lower case; `history` stands before the window. */
export function blocksOf(model: RunModel, tab: number, filter: string, history?: History): Block[] {
  if (tab === ALL && model.ranks.length > 1) {
    return [...model.all.parts.map((part) => blockOf(part, filter)), ...unfinished(model, filter)];
  }
  const parts = model.rank(tab)?.log.parts ?? [];
  if (!history) {
    return parts.map((part) => blockOf(part, filter));
  }
  const { part: first, line } = history.mark;
  return [
    ...history.log.parts.map((part) => blockOf(part, filter)),
    blockOf(first, filter, line - first.dropped),
    ...parts.slice(parts.indexOf(first) + 1).map((part) => blockOf(part, filter)),
  ];
}

/** The text of blocks, as far as the page has it. */
export function textOf(blocks: Block[]): string {
  const lines: string[] = [];
  for (const { lines: found, shown } of blocks) {
    for (let index = 0; found && index < found.count; index++) {
      lines.push(found.text(index));
    }
    if (shown) {
      const plain = shown.item.data["text/plain"];
      lines.push(typeof plain === "string" ? plain : Array.isArray(plain) ? plain.join("") : "");
    }
  }
  return lines.join("\n");
}

/** Below all that is finished, what each rank is writing just now. */
function unfinished(model: RunModel, filter: string): Block[] {
  const open = model.ranks
    .filter((rank) => rank.log.last)
    .map((rank) => [rank.rank, rank.log.last] as [number, string]);
  const lines = fold(open, (text) => text).map(([ranks, text]) => ({
    label: rankLabel(ranks).split(" ").slice(1).join(" "),
    text,
  }));
  return lines.length ? [{ key: model, lines: linesOf(0, lines.length, (index) => lines[index], filter) }] : [];
}

function blockOf(part: Transcript | FoldedLines | Shown, filter: string, start = 0): Block {
  if (part instanceof Shown) {
    return { key: part, shown: part };
  }
  if (part instanceof Transcript) {
    const from = Math.max(0, start);
    const line = (index: number) => ({ label: "", text: part.line(from + index) });
    return { key: part, lines: linesOf(part.dropped + from, part.length - from, line, filter) };
  }
  return { key: part, lines: linesOf(part.first, part.entries.length, (index) => part.entries[index], filter) };
}

function linesOf(first: number, count: number, line: (index: number) => Line, filter: string): Lines {
  let kept: number[] | undefined;
  if (filter) {
    kept = [];
    for (let index = 0; index < count; index++) {
      if (strip(line(index).text).toLowerCase().includes(filter)) {
        kept.push(index);
      }
    }
  }
  const at = (index: number) => line(kept ? kept[index] : index);
  return {
    first,
    count: kept ? kept.length : count,
    html: (index) => {
      const { label, text } = at(index);
      return (label ? `<span class="sky-label">${escaped(label)}</span>` : "") + toHtml(text);
    },
    text: (index) => {
      const { label, text } = at(index);
      return (label ? `[${label.replace(/ /g, "")}] ` : "") + strip(text);
    },
  };
}
