/** The variables of a pool's ranks, as `%sky names` lists them: sorted by any column, and asked for while it is unfolded. */

import { copy } from "../run/export-text";
import { button, fill, make, mark, reason, say } from "./dom";
import type { NameFacts, NamesReply } from "./schema";

const COLUMNS = ["name", "type", "value", "shape", "dtype", "device", "size", "from", "when", "note"] as const;
type Column = (typeof COLUMNS)[number];
// What is sorted by numbers.
const NUMBERS: Partial<Record<Column, (row: NameFacts) => number | null>> = {
  value: (row) => (row.value ? row.magnitude : null),
  shape: (row) => (row.shape ? row.magnitude : null),
  size: (row) => row.bytes,
  when: (row) => row.when,
};
const EVERY = 2000;

export class NamesTable {
  readonly node = make("details", "sky-live-variables");
  private readonly summary = make("summary");
  private readonly told = make("p", "sky-live-note", { role: "status" });
  private readonly notes = make("ul", "sky-live-notes");
  private readonly head = make("tr");
  private readonly body = make("tbody");
  private readonly place = make("div", "sky-live-scroll", { role: "region", tabindex: "0", "aria-label": "Variables of the ranks" });
  private rows: NameFacts[] = [];
  private by: Column = "name";
  private down = false;
  private pool = "";
  private live = false;
  private asked = -Infinity;
  private asking = false;

  /** `ask` gets the names of a pool, by its name. */
  constructor(private readonly ask: (pool: string) => Promise<NamesReply>) {
    say(this.summary, "Variables");
    for (const column of COLUMNS) {
      const cell = make("th", "", { scope: "col", "data-column": column });
      cell.append(button(column, () => this.sort(column)));
      this.head.append(cell);
    }
    const [table, head] = [make("table", "sky-live-names"), make("thead")];
    head.append(this.head);
    table.append(head, this.body);
    this.place.append(table);
    this.node.append(this.summary, this.told, this.notes, this.place);
    this.node.addEventListener("toggle", () => this.look());
    this.draw();
  }

  /** A pool as it is now; without a kernel that is asked, what was told last stays. */
  show(pool: string, live: boolean): void {
    if (pool !== this.pool) {
      this.rows = [];
      this.asked = -Infinity;
    }
    this.pool = pool;
    this.live = live;
    this.node.hidden = !live && !this.rows.length;
    this.look();
  }

  /** Ask, unless it is folded or was asked just now. */
  private look(): void {
    if (this.node.open && this.live && !this.asking && performance.now() - this.asked >= EVERY) {
      void this.read();
    }
  }

  private async read(): Promise<void> {
    const pool = this.pool;
    this.asking = true;
    try {
      const { names, notes } = await this.ask(pool);
      if (pool === this.pool) {
        this.rows = names;
        this.draw(notes);
      }
    } catch (error) {
      this.draw([`Nothing new is heard of them: ${reason(error)}.`]);
    } finally {
      this.asked = performance.now();
      this.asking = false;
    }
  }

  private sort(column: Column): void {
    this.down = column === this.by ? !this.down : column in NUMBERS;
    this.by = column;
    this.draw();
  }

  private draw(notes?: readonly string[]): void {
    const used = (column: Column) => column === "name" || column === "type" || this.rows.some((row) => textOf(row, column));
    for (const cell of this.head.children as Iterable<HTMLElement> & HTMLCollection) {
      const column = cell.dataset.column as Column;
      cell.hidden = !used(column);
      mark(cell, "aria-sort", column !== this.by ? "none" : this.down ? "descending" : "ascending");
    }
    this.place.hidden = !this.rows.length;
    if (notes) {
      fill(this.notes, notes, () => make("li"), (node, text) => say(node, text));
      say(this.told, this.rows.length ? "" : "The ranks have no names of yours yet.");
    }
    this.notes.hidden = !this.notes.childElementCount;
    this.told.hidden = !this.told.textContent;
    fill(this.body, sorted(this.rows, this.by, this.down), () => this.row(), (node, row) => {
      COLUMNS.forEach((column, index) => {
        const cell = node.children[index] as HTMLElement;
        cell.hidden = !used(column);
        if (column === "name") {
          const name = cell.firstElementChild as HTMLElement;
          say(name, row.name);
          mark(name, "title", `Copy ${pullOf(row.name)}`);
        } else {
          say(cell, textOf(row, column));
        }
      });
    });
  }

  private row(): HTMLElement {
    const node = make("tr");
    for (const column of COLUMNS) {
      const cell = make(column === "name" ? "th" : "td", "", { "data-column": column });
      if (column === "name") {
        mark(cell, "scope", "row");
        const name = button("", () => void this.copy(name.textContent ?? ""));
        cell.append(name);
      }
      node.append(cell);
    }
    return node;
  }

  private async copy(name: string): Promise<void> {
    await copy(pullOf(name), this.node);
    say(this.told, `Copied: ${pullOf(name)}`);
    this.told.hidden = false;
  }
}

function pullOf(name: string): string {
  return `%sky pull ${name}`;
}

function textOf(row: NameFacts, column: Column): string {
  switch (column) {
    case "from":
      return row.origin;
    case "when":
      return row.when === null ? "" : new Date(row.when * 1000).toLocaleTimeString([], { timeStyle: "medium" });
    case "size":
      // A number and its unit stay on one line.
      return row.size.replace(/(\d) (?=[a-zA-Z]*(?:B|bytes?)\b)/g, "$1\u00a0");
    default:
      return row[column];
  }
}

/** Rows by a column; those that have nothing there come last, either way. */
export function sorted(rows: readonly NameFacts[], by: Column, down: boolean): NameFacts[] {
  const number = NUMBERS[by];
  const turn = down ? -1 : 1;
  const compare = (a: NameFacts, b: NameFacts): number => {
    const [left, right] = number ? [number(a), number(b)] : [textOf(a, by) || null, textOf(b, by) || null];
    if (left === null || right === null) {
      return left === right ? 0 : left === null ? 1 : -1;
    }
    if (typeof left === "number" && typeof right === "number") {
      return turn * (left - right);
    }
    return turn * String(left).localeCompare(String(right));
  };
  return [...rows].sort((a, b) => compare(a, b) || a.name.localeCompare(b.name));
}
