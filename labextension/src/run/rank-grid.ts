/** The ranks of a run that has too many for tabs: a cell each, coloured by state, with a search, and the first that failed on top. */

import { strip } from "./ansi";
import { make, mark, say } from "./dom";
import type { Rank, State } from "./model";
import { ALL } from "./viewport";
import { culpritOf, TROUBLES } from "./run-status";

/** With more ranks than this there are no tabs. */
export const MOST_TABS = 32;
// With more than this, cells are small and have no numbers.
const NUMBERED = 256;
const STATES: State[] = [...TROUBLES, "running", "done"];
const RANGE = /^(\d+)(?:-(\d+))?$/;

export class RankGrid {
  readonly node = make("div", "sky-ranks", { role: "group", "aria-label": "Ranks" });
  private readonly all = make("button", "sky-ranks-all", { type: "button" });
  private readonly counts = new Map<State, HTMLButtonElement>();
  private readonly search = make("input", "", {
    type: "search",
    placeholder: "Find ranks",
    "aria-label": "Show only ranks with these numbers, this state or this note",
  });
  private readonly found = make("span", "sky-ranks-found", { role: "status" });
  private readonly first = make("button", "sky-ranks-first", { type: "button" });
  private readonly grid = make("div", "sky-grid", { role: "listbox", "aria-label": "Ranks" });
  private cells: HTMLElement[] = [];
  private shown: HTMLElement[] = [];
  private ranks: Rank[] = [];
  private chosen = ALL;
  /** The one cell that the tabulator key leads to. */
  private stop: HTMLElement | undefined;
  private cause: Rank | undefined;
  /** The state whose ranks alone are shown. */
  private state: State | undefined;

  /** `panel` is what the cells change; `choose` is told the rank, or `ALL`, that a person chose. */
  constructor(
    private readonly panel: HTMLElement,
    private readonly choose: (tab: number) => void,
  ) {
    const head = make("div", "sky-ranks-head");
    head.append(this.all);
    for (const state of STATES) {
      const button = make("button", "", { type: "button", "aria-pressed": "false", title: `Show only ranks that are ${state}` });
      button.append(make("span", "sky-dot", { "data-state": state, "aria-hidden": "true" }), make("span"));
      button.addEventListener("click", () => this.turn(state));
      this.counts.set(state, button);
      head.append(button);
    }
    head.append(this.search, this.found);
    this.node.append(head, this.first, this.grid);
    this.all.addEventListener("click", () => choose(ALL));
    this.first.addEventListener("click", () => this.cause && choose(this.cause.rank));
    this.grid.addEventListener("click", (event) => this.onClick(event));
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    this.search.addEventListener("input", () => this.filter());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.shown.length) {
        event.preventDefault();
        this.go(0);
      }
    });
  }

  draw(ranks: Rank[], chosen: number): void {
    this.node.hidden = ranks.length <= MOST_TABS;
    if (this.node.hidden) {
      return;
    }
    this.ranks = ranks;
    if (this.cells.length !== ranks.length) {
      this.make();
    }
    const changed = this.drawCells();
    if (changed) {
      this.drawCounts();
      this.drawFirst();
      if (this.state !== undefined || this.search.value) {
        this.filter();
      }
    }
    if (changed || chosen !== this.chosen) {
      this.select(chosen);
    }
    say(this.all, `All ${ranks.length.toLocaleString("en")} ranks`);
    mark(this.all, "aria-pressed", String(chosen === ALL));
    mark(this.panel, "role", "group");
    mark(this.panel, "aria-label", chosen === ALL ? "Output of all ranks" : `Output of rank ${chosen}`);
  }

  private make(): void {
    this.cells = this.ranks.map((rank) => {
      const cell = make("div", "sky-cell", { role: "option", "aria-selected": "false", tabindex: "-1" });
      cell.dataset.tab = String(rank.rank);
      cell.textContent = this.ranks.length > NUMBERED ? "" : String(rank.rank);
      return cell;
    });
    this.grid.classList.toggle("sky-numbered", this.ranks.length <= NUMBERED);
    this.grid.replaceChildren(...this.cells);
    this.shown = this.cells;
    this.stop = undefined;
    this.chosen = NaN;
  }

  /** Bring the cells up to date; whether one has changed. */
  private drawCells(): boolean {
    let changed = false;
    for (let index = 0; index < this.cells.length; index++) {
      const rank = this.ranks[index];
      const cell = this.cells[index];
      const word = rank.waits || rank.state;
      if (cell.dataset.word !== word || cell.dataset.state !== rank.state) {
        changed = true;
        cell.dataset.word = word;
        mark(cell, "data-state", rank.state);
        mark(cell, "title", `rank ${rank.rank}: ${word}`);
        mark(cell, "aria-label", `rank ${rank.rank}: ${word}`);
        cell.classList.toggle("sky-cell-waits", rank.waits !== "");
      }
    }
    return changed;
  }

  private drawCounts(): void {
    const counts = new Map<State, number>();
    for (const rank of this.ranks) {
      counts.set(rank.state, (counts.get(rank.state) ?? 0) + 1);
    }
    for (const [state, button] of this.counts) {
      const count = counts.get(state) ?? 0;
      // What a person has chosen stays where it can be chosen off.
      button.hidden = count === 0 && this.state !== state;
      say(button.children[1], `${count.toLocaleString("en")} ${state}`);
    }
  }

  /** Its line is there from the beginning: nothing below it moves when a rank fails. */
  private drawFirst(): void {
    this.cause = culpritOf(this.ranks);
    this.first.disabled = !this.cause;
    if (!this.cause) {
      say(this.first, "No rank has failed");
      return;
    }
    const { rank, state, note, traceback } = this.cause;
    const lines = strip(traceback).trimEnd().split("\n");
    const why = lines[lines.length - 1] || note;
    say(this.first, `First: rank ${rank} ${state}${why ? `: ${why}` : ""}`);
    mark(this.first, "title", `Show the output of rank ${rank}`);
  }

  private turn(state: State): void {
    this.state = this.state === state ? undefined : state;
    for (const [one, button] of this.counts) {
      mark(button, "aria-pressed", String(one === this.state));
    }
    this.drawCounts();
    this.filter();
  }

  /** Show only what is looked for. */
  private filter(): void {
    const fits = matcher(this.search.value);
    this.shown = this.cells.filter((cell, index) => {
      const rank = this.ranks[index];
      cell.hidden = !((this.state === undefined || rank.state === this.state) && fits(rank));
      return !cell.hidden;
    });
    const all = this.shown.length === this.cells.length;
    say(this.found, all ? "" : `${this.shown.length.toLocaleString("en")} shown`);
    this.rove();
  }

  private select(chosen: number): void {
    this.chosen = chosen;
    for (const cell of this.cells) {
      mark(cell, "aria-selected", String(Number(cell.dataset.tab) === chosen));
    }
    this.rove();
    const cell = this.stop;
    if (chosen !== ALL && cell && this.grid.scrollHeight > this.grid.clientHeight) {
      const top = cell.offsetTop - this.grid.offsetTop;
      if (top < this.grid.scrollTop || top + cell.offsetHeight > this.grid.scrollTop + this.grid.clientHeight) {
        this.grid.scrollTop = top - this.grid.clientHeight / 2;
      }
    }
  }

  /** Lead the tabulator key to the chosen cell, or the first that is shown. */
  private rove(): void {
    const chosen = this.shown.find((cell) => Number(cell.dataset.tab) === this.chosen);
    const stop = chosen ?? this.shown[0];
    if (stop !== this.stop) {
      if (this.stop) {
        this.stop.tabIndex = -1;
      }
      this.stop = stop;
    }
    if (stop && stop.tabIndex !== 0) {
      stop.tabIndex = 0;
    }
  }

  private onClick(event: Event): void {
    const at = this.shown.indexOf(event.target as HTMLElement);
    if (at >= 0) {
      this.go(at);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const at = this.shown.indexOf(event.target as HTMLElement);
    const target = at < 0 ? undefined : cellAfter(event.key, at, this.shown.length, () => this.columns());
    if (target !== undefined) {
      event.preventDefault();
      this.go(target);
    }
  }

  private go(index: number): void {
    const cell = this.shown[index];
    this.choose(Number(cell.dataset.tab));
    cell.focus({ preventScroll: false });
  }

  /** How many cells are beside each other. */
  private columns(): number {
    const top = this.shown[0].offsetTop;
    const next = this.shown.findIndex((cell) => cell.offsetTop !== top);
    return next < 0 ? this.shown.length : next;
  }
}

/** Where the keys lead from one of `count` cells, which do not go round; undefined for other keys, or where there is none. */
export function cellAfter(key: string, index: number, count: number, columns: () => number): number | undefined {
  const moves: Record<string, () => number> = {
    ArrowRight: () => index + 1,
    ArrowLeft: () => index - 1,
    ArrowDown: () => index + columns(),
    ArrowUp: () => index - columns(),
    Home: () => 0,
    End: () => count - 1,
    " ": () => index,
    Enter: () => index,
  };
  const found = Object.hasOwn(moves, key) ? moves[key]() : -1;
  return found >= 0 && found < count ? found : undefined;
}

/** Whether a rank is one of those that a text asks for: "7", "0-15, 20", "failed", or words of a note or error. */
export function matcher(text: string): (rank: Rank) => boolean {
  const words = text.toLowerCase().trim();
  if (!words) {
    return () => true;
  }
  const ranges = words
    .split(/[\s,]+/)
    .filter(Boolean)
    .map((part) => RANGE.exec(part));
  if (ranges.every((range) => range !== null)) {
    return ({ rank }) => ranges.some((range) => range && rank >= Number(range[1]) && rank <= Number(range[2] ?? range[1]));
  }
  return (rank) => `${rank.state} ${rank.note} ${strip(rank.traceback)}`.toLowerCase().includes(words);
}
