/** Lines as they are shown: wrapped at a width, with the times at which they came, and with one of them marked. No DOM. */

import { runs, strip, wrapped } from "./ansi";
import type { Line, Lines } from "./filtered-lines";
import { clockTime } from "./line-times";
import { NOTHING } from "./similar-lines";

/** How wide a row is in letters, 0 for as wide as its line; whether times are shown; which line is marked, else -1. */
export interface Dress {
  columns: number;
  times: boolean;
  marked: number;
}

// What stands before a line: the ranks take five letters at least, a time nine, and what folds similar lines eight.
const LABEL = 5;
const TIME = 9;
const FOLD = 8;
const LEAST = 20;
// Letters of twice the width: East Asian ones, and most pictograms.
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u;
const NARROW = /^[\x00-\x7f]*$/;

/** Rows of lines; `row` says which row a line begins with. */
export interface DressedLines extends Lines {
  row(line: number): number;
}

export function dress(lines: Lines, { columns, times, marked }: Dress): DressedLines {
  const look = (line: Line, index: number): Line => ({
    ...line,
    ...(times ? { stamp: clockTime(line.time) } : {}),
    ...(index === marked ? { marked: true } : {}),
  });
  if (!columns) {
    return { ...lines, line: (index) => look(lines.line(index), index), row: (index) => index };
  }
  const room = (line: Line) =>
    Math.max(
      LEAST,
      columns - (line.label ? Math.max(LABEL, line.label.length + 1) : 0) - (times ? TIME : 0) - (line.fold ? FOLD : 0),
    );
  // The rows at which lines begin.
  const begins = new Uint32Array(lines.count + 1);
  for (let index = 0; index < lines.count; index++) {
    const line = lines.line(index);
    begins[index + 1] = begins[index] + (line.text.length * 2 <= room(line) ? 1 : pieces(line.text, room(line)).length);
  }
  return {
    first: lines.first,
    count: begins[lines.count],
    line: (row) => {
      const index = last(begins, row);
      const whole = look(lines.line(index), index);
      const part = row - begins[index];
      const text = pieces(whole.text, room(whole))[part] ?? "";
      const blank = (words: string | undefined) => (words ? " ".repeat(words.length) : words);
      const fold = whole.fold && NOTHING;
      const rest = { ...whole, text, label: blank(whole.label) ?? "", stamp: blank(whole.stamp), fold };
      return part ? rest : { ...whole, text };
    },
    row: (index) => begins[index] ?? 0,
  };
}

/** The last place whose value is at most that. */
function last(values: Uint32Array, value: number): number {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return Math.min(low, values.length - 2);
}

/** A line in pieces of so many letters, each in its own colours. */
export function pieces(text: string, columns: number): string[] {
  if (!text.includes("\t") && NARROW.test(text) && strip(text).length <= columns) {
    return [text];
  }
  const found = [""];
  let at = 0;
  for (const [style, run] of runs(text)) {
    let piece = "";
    for (const letter of run) {
      const width = letter === "\t" ? 8 - (at % 8) : WIDE.test(letter) ? 2 : 1;
      if (at + width > columns) {
        found[found.length - 1] += wrapped(style, piece);
        found.push("");
        [piece, at] = ["", 0];
      }
      piece += letter === "\t" ? " ".repeat(width) : letter;
      at += width;
    }
    found[found.length - 1] += wrapped(style, piece);
  }
  return found;
}
