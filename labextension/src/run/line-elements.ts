/** Lines as nodes of the page: made once, and given other texts as other lines come in sight. */

import { isStderr } from "./ansi";
import type { Line, Lines } from "./filtered-lines";
import { write } from "./coloured-text";
import { make, mark, paint } from "./dom";
import type { Fold } from "./similar-lines";

class Row {
  readonly node = make("div", "sky-row");
  private line: Line = { label: "", text: "" };
  private readonly words = document.createTextNode("");
  private stderr = false;
  private who: HTMLElement | undefined;
  private time: HTMLElement | undefined;
  private coloured: HTMLElement | undefined;
  private fold: HTMLElement | undefined;

  constructor() {
    this.node.append(this.words);
  }

  show(line: Line): void {
    if (line.label !== this.line.label) {
      this.name(line.label);
    }
    if (line.stamp !== this.line.stamp) {
      this.stamp(line.stamp);
    }
    if (line.fold?.name !== this.line.fold?.name || line.fold?.text !== this.line.fold?.text) {
      this.offer(line.fold);
    }
    if (line.marked !== this.line.marked) {
      this.node.classList.toggle("sky-found", line.marked === true);
    }
    if (line.text !== this.line.text) {
      this.write(line.text);
      this.mark(isStderr(line.text));
    }
    this.line = line;
  }

  private name(label: string): void {
    if (!label) {
      this.who?.remove();
      this.who = undefined;
      return;
    }
    if (!this.who) {
      this.who = make("span", "sky-label");
      this.node.insertBefore(this.who, this.fold ?? this.words);
    }
    this.who.textContent = label;
  }

  private stamp(time: string | undefined): void {
    if (time === undefined) {
      this.time?.remove();
      this.time = undefined;
      return;
    }
    if (!this.time) {
      this.time = make("span", "sky-time");
      this.node.prepend(this.time);
    }
    this.time.textContent = time;
  }

  /** What shows or hides similar lines, between the ranks and the text. */
  private offer(fold: Fold | undefined): void {
    const focused = this.fold?.contains(document.activeElement) === true;
    this.fold?.remove();
    this.fold = undefined;
    if (!fold) {
      return;
    }
    this.fold = make("span", "sky-fold");
    if (fold.turn) {
      const button = make("button", "", { type: "button", title: fold.name, "aria-label": fold.name });
      mark(button, "aria-expanded", String(fold.open));
      button.textContent = fold.text;
      // Whatever line it shows by then.
      button.addEventListener("click", () => this.line.fold?.turn?.());
      this.fold.append(button);
    } else {
      this.fold.textContent = fold.text;
    }
    this.node.insertBefore(this.fold, this.words);
    if (focused) {
      this.fold.querySelector("button")?.focus();
    }
  }

  private mark(stderr: boolean): void {
    if (stderr !== this.stderr) {
      this.stderr = stderr;
      this.node.classList.toggle("sky-stderr", stderr);
      this.node.title = stderr ? "stderr" : "";
    }
  }

  private write(text: string): void {
    if (!text.includes("\x1b")) {
      this.coloured?.remove();
      this.coloured = undefined;
      this.words.data = text;
      return;
    }
    this.words.data = "";
    if (!this.coloured) {
      this.coloured = make("span");
      this.node.append(this.coloured);
    }
    write(this.coloured, text);
  }
}

/** Those lines of a stretch that are in sight. */
export class Rows {
  readonly node = make("pre");
  private readonly rows: Row[] = [];
  private from = 0;

  /** Show the lines from one number up to another. */
  draw(lines: Lines, from: number, to: number, height: number): void {
    const count = Math.max(0, to - from);
    while (this.rows.length > count) {
      this.rows.pop()?.node.remove();
    }
    while (this.rows.length < count) {
      const row = new Row();
      this.rows.push(row);
      this.node.append(row.node);
    }
    this.rows.forEach((row, index) => row.show(lines.line(from + index)));
    if (from !== this.from) {
      this.from = from;
      paint(this.node, [["top", `${from * height}px`]]);
    }
  }
}
