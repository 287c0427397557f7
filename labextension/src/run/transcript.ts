/** The text of one rank as a terminal would have it: lines that can still change, the last of them kept. As display/model/transcript.py. */

import * as ansi from "./ansi";
import { LineTimes } from "./line-times";

type Cell = [ansi.Style, string];
type Row = string | Cell[];

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/;
const TOKEN = `([^\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f]+)|([\\n\\r\\b])|${ansi.ESCAPE}|[\\s\\S]`;
const UNFINISHED = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]+)?$/;
const MAX_HELD = 4096;
const WIDTH = 1000;
const MAX_COLUMNS = 20_000;

export class Transcript {
  /** How many lines are gone from the beginning, and how many there were before the first. */
  dropped: number;
  private rows: Row[] = [""];
  private row = 0;
  private column: number | null = null;
  private sgr: ansi.Style = ansi.PLAIN;
  private stderr = false;
  private held = "";

  /** `key` is the same for copies. */
  constructor(
    readonly maxLines = 5000,
    dropped = 0,
    readonly key: object = {},
    private readonly times = new LineTimes(),
  ) {
    this.dropped = dropped;
  }

  /** Its lines as they are now, for reading. */
  still(): Transcript {
    const copy = new Transcript(this.maxLines, this.dropped, this.key, this.times);
    copy.rows = this.rows.map(text);
    copy.row = copy.rows.length - 1;
    return copy;
  }

  /** How many lines there are to show; the last may be unfinished. */
  get length(): number {
    return this.rows.length - (this.open ? 0 : 1);
  }

  /** Whether the last line is not finished. */
  get open(): boolean {
    return this.rows[this.rows.length - 1].length > 0;
  }

  /** The unfinished line; empty where there is none. */
  get last(): string {
    return this.open ? this.line(this.rows.length - 1) : "";
  }

  line(index: number): string {
    return text(this.rows[index]);
  }

  /** When a line came; undefined of one that was there before the page. */
  time(index: number): number | undefined {
    return this.times.of(this.dropped + index);
  }

  /** Lines that begin from now on came at `seconds` since 1970. */
  noteTime(seconds: number): void {
    this.times.note(this.dropped + this.length, seconds);
  }

  lines(): string[] {
    return this.rows.slice(0, this.length).map(text);
  }

  /** Take what was printed next; `onLine` is told each line that is finished. */
  feed(piece: string, onLine?: (line: string) => void, stderr = false): void {
    this.stderr = stderr;
    piece = this.held + piece;
    this.held = "";
    if (
      this.column === null &&
      this.row === this.rows.length - 1 &&
      this.sgr === ansi.PLAIN &&
      !CONTROL.test(piece)
    ) {
      this.feedPlain(piece, onLine);
    } else {
      const tail = UNFINISHED.exec(piece.slice(-MAX_HELD));
      if (tail) {
        this.held = tail[0];
        piece = piece.slice(0, piece.length - tail[0].length);
      }
      for (const token of piece.matchAll(new RegExp(TOKEN, "g"))) {
        this.take(token, onLine);
      }
    }
    if (this.rows.length > 2 * this.maxLines + 1) {
      this.trim(this.maxLines);
    }
  }

  /** Take back an unfinished last line of blanks: what a bar leaves that is taken away for other output. */
  dropBlank(): void {
    const last = this.rows.length - 1;
    if (this.open && this.row === last && !ansi.strip(this.line(last)).trim()) {
      this.rows[last] = "";
      this.column = null;
    }
  }

  /** Begin a new line below all others, unless there is one. */
  endLine(onLine?: (line: string) => void): void {
    if (this.open) {
      this.feed("\n".repeat(this.rows.length - this.row), onLine, this.stderr);
    }
  }

  /** Forget all but the last lines. */
  trim(count: number): void {
    const gone = this.rows.length - 1 - count;
    if (gone > 0) {
      this.rows.splice(0, gone);
      this.dropped += gone;
      this.row = Math.max(0, this.row - gone);
    }
  }

  private feedPlain(piece: string, onLine?: (line: string) => void): void {
    const lines = piece.split("\n");
    if (lines[0]) {
      this.append(lines[0]);
    }
    for (let index = 1; index < lines.length; index++) {
      onLine?.(this.line(this.rows.length - 1));
      const line = lines[index];
      const cut = line.length > MAX_COLUMNS ? `${line.slice(0, MAX_COLUMNS)}…` : line;
      this.rows.push(ansi.wrapped(this.look, cut));
    }
    this.row = this.rows.length - 1;
  }

  private take(token: RegExpMatchArray, onLine?: (line: string) => void): void {
    const [, words, move, codes, kind] = token;
    if (words) {
      this.write(words);
    } else if (move === "\n") {
      this.newline(onLine);
    } else if (move === "\r") {
      this.column = this.rows[this.row].length ? 0 : null;
    } else if (move === "\b") {
      this.column = Math.max(0, this.at() - 1);
    } else if (kind === "m") {
      this.sgr = ansi.restyled(this.sgr, codes);
    } else if (kind) {
      this.control(kind, codes);
    }
  }

  /** How what is written next looks; a program's own reset does not take it off stderr. */
  private get look(): ansi.Style {
    return this.stderr ? ansi.onStderr(this.sgr) : this.sgr;
  }

  private write(words: string): void {
    if (this.column === null) {
      this.append(words);
      return;
    }
    const cells = this.cells();
    words = words.slice(0, Math.max(0, MAX_COLUMNS - this.column));
    while (cells.length < this.column) {
      cells.push([ansi.PLAIN, " "]);
    }
    const look = this.look;
    for (const letter of words) {
      cells[this.column++] = [look, letter];
    }
  }

  private append(words: string): void {
    const row = this.line(this.row);
    if (row.length <= MAX_COLUMNS) {
      const room = MAX_COLUMNS - row.length;
      this.rows[this.row] = ansi.joined(row, this.look, words.length > room ? `${words.slice(0, room)}…` : words);
    }
  }

  private newline(onLine?: (line: string) => void): void {
    const done = this.line(this.row);
    this.rows[this.row] = done;
    this.row += 1;
    if (this.row === this.rows.length) {
      onLine?.(done);
      this.rows.push("");
    }
    this.column = this.rows[this.row].length ? 0 : null;
  }

  private control(kind: string, codes: string): void {
    const digits = codes.split(";")[0];
    const number = /^\d+$/.test(digits) ? Number(digits.slice(0, 6)) : 0;
    const steps = Math.max(1, number);
    if ("ABEF".includes(kind)) {
      const column = this.at();
      const up = kind === "A" || kind === "F";
      this.row = up ? Math.max(0, this.row - steps) : Math.min(this.rows.length - 1, this.row + steps);
      this.column = kind === "A" || kind === "B" ? column : 0;
    } else if ("CDG".includes(kind)) {
      const column = kind === "C" ? this.at() + steps : kind === "D" ? this.at() - steps : steps - 1;
      this.column = Math.max(0, Math.min(column, Math.max(WIDTH, this.cells().length)));
    } else if (kind === "K") {
      this.erase(number);
    } else if (kind === "J" && number === 0) {
      this.erase(0);
      this.rows.splice(this.row + 1);
    }
  }

  /** Erase in the cursor's row: from the cursor on (0), up to it (1), or all of it (2). */
  private erase(what: number): void {
    const column = this.at();
    const cells = this.cells();
    if (what === 1) {
      for (let index = 0; index < Math.min(column + 1, cells.length); index++) {
        cells[index] = [ansi.PLAIN, " "];
      }
    } else {
      cells.splice(what === 0 ? column : 0);
    }
    if (!cells.length) {
      this.rows[this.row] = "";
      this.column = column || null;
    }
  }

  private at(): number {
    return this.column ?? this.cells().length;
  }

  private cells(): Cell[] {
    const row = this.rows[this.row];
    if (typeof row !== "string") {
      return row;
    }
    const cells: Cell[] = [];
    for (const [style, piece] of ansi.runs(row)) {
      for (const letter of piece) {
        cells.push([style, letter]);
      }
    }
    this.rows[this.row] = cells;
    this.column ??= cells.length;
    return cells;
  }
}

function text(row: Row): string {
  if (typeof row === "string") {
    return row;
  }
  let done = "";
  for (let start = 0, index = 1; index <= row.length; index++) {
    if (index === row.length || row[index][0] !== row[start][0]) {
      done += ansi.wrapped(
        row[start][0],
        row
          .slice(start, index)
          .map((cell) => cell[1])
          .join(""),
      );
      start = index;
    }
  }
  return done;
}

/** Keeps a rank's stdout and stderr off each other's lines; see display/model/transcript.py. */
export class Streams {
  private ended = new Set<number>();

  /** `last` is the stream that came last, or -1. */
  constructor(private last = -1) {}

  /** Whether what comes now follows something on another stream. */
  changes(name: number): boolean {
    return name !== this.last;
  }

  /** Whether the text needs a line of its own, and what of it is to be shown. */
  next(name: number, piece: string, open: boolean): [boolean, string] {
    if (piece && this.ended.delete(name)) {
      piece = piece.replace(/^\r?\n/, "");
    }
    if (!piece || name === this.last) {
      return [false, piece];
    }
    const last = this.last;
    this.last = name;
    if (!open || /^\r?\n/.test(piece)) {
      return [false, piece];
    }
    this.ended.add(last);
    return [true, piece];
  }
}
