/** Below the box of lines, where it is always in sight: what ranks raised, their results, and what else there is to say. */

import { strip } from "./ansi";
import { write } from "./coloured-text";
import { culpritOf } from "./run-status";
import { copyButton } from "./copy-names";
import { make } from "./dom";
import { fold, rankLabel } from "./folding";
import type { Host } from "./display-context";
import { arrange, ItemBox } from "./item-box";
import type { Shown } from "./rank-output";
import type { Rank, RunModel } from "./model";
import { ALL } from "./viewport";

// Of very many ranks so many different texts or results are shown; a rank's own are in its output.
const MOST = 32;

export class Footer {
  readonly node = make("div", "sky-foot");
  private key = "";

  /** Draw it anew the next time. */
  reset(): void {
    this.key = "";
  }

  /** Unfold what a rank raised and bring it into sight; false where none has. */
  showError(): boolean {
    const trouble = this.node.querySelector<HTMLElement>(".sky-trouble");
    if (trouble instanceof HTMLDetailsElement) {
      trouble.open = true;
    }
    trouble?.scrollIntoView({ block: "nearest" });
    return trouble !== null;
  }

  draw(model: RunModel, host: Host, tab: number): void {
    const ranks = tab === ALL ? model.ranks : model.ranks.filter((rank) => rank.rank === tab);
    const key = JSON.stringify([
      tab,
      model.notices.length,
      host.note,
      host.copyTo !== undefined,
      model.finished,
      [...ranks, ...model.unseen].map((one) => [one.state, one.result !== undefined]),
    ]);
    if (key === this.key) {
      return;
    }
    this.key = key;
    const several = model.ranks.length > 1;
    this.node.replaceChildren();
    const ended = [...ranks, ...model.unseen];
    // What a rank waits for is in its chip.
    const over = ended.filter((one) => one.state !== "running");
    const cause = culpritOf(ranks)?.rank;
    const notes = told(over, (rank) => rank.note, cause);
    for (const [of, note] of notes.slice(0, MOST)) {
      this.node.append(trouble(`${rankLabel(of)} ${model.rank(of[0])?.state}`, note));
    }
    this.leftOut(notes, "notes");
    const raisers = told(ended, (rank) => rank.traceback, cause);
    for (const [of, text] of raisers.slice(0, MOST)) {
      const who = several || model.unseen.length ? rankLabel(of) : "";
      // Once the run is over, its traceback stands right below, as the error of the cell.
      this.node.append(model.finished ? raised(who, text) : trouble(who, text));
    }
    this.leftOut(raisers, "errors");
    const results = ranks.filter((rank) => rank.result).map((rank) => [rank.rank, rank.result] as [number, Shown]);
    const outs = make("div", "sky-outs");
    this.node.append(outs);
    const different = fold(results, (one) => JSON.stringify(one.item));
    for (const [of, shown] of different.slice(0, MOST)) {
      const box = new ItemBox();
      outs.append(box.node);
      box.draw(shown, several && tab === ALL ? `Out, ${rankLabel(of)}` : "Out", host);
    }
    this.leftOut(different, "results");
    arrange(outs, outs.querySelectorAll(".sky-picture").length);
    for (const text of [...model.notices, host.note ?? "", quiet(model, ranks)].filter(Boolean)) {
      const node = make("div", "sky-aside");
      node.textContent = text;
      this.node.append(node);
      const button = copyButton(text, host);
      if (button) {
        this.node.append(button);
      }
    }
  }

  /** Say how many ranks have others than those that are shown. */
  private leftOut(groups: [number[], unknown][], what: string): void {
    const more = groups.slice(MOST).reduce((sum, [of]) => sum + of.length, 0);
    if (more) {
      const node = make("div", "sky-aside");
      node.textContent = `${more.toLocaleString("en")} more ranks have other ${what}: choose one to see its own`;
      this.node.append(node);
    }
  }
}

/** What ranks have to say, equal texts once; what the rank `first` says is on top. */
function told(ranks: Rank[], pick: (rank: Rank) => string, first: number | undefined): [number[], string][] {
  const found = fold(
    ranks.filter((rank) => pick(rank)).map((rank) => [rank.rank, pick(rank)] as [number, string]),
    (text) => text,
  );
  const at = first === undefined ? -1 : found.findIndex(([of]) => of.includes(first));
  return at > 0 ? [found[at], ...found.slice(0, at), ...found.slice(at + 1)] : found;
}

function trouble(who: string, text: string): HTMLElement {
  const node = make("div", "sky-trouble");
  if (who) {
    const name = make("div", "sky-who");
    name.textContent = who;
    node.append(name);
  }
  const lines = make("pre", "sky-wrap");
  write(lines, text);
  node.append(lines);
  return node;
}

/** What ranks raised, in a line; the rest of it unfolds. */
function raised(who: string, text: string): HTMLElement {
  const node = make("details", "sky-trouble");
  const line = make("summary", "sky-wrap");
  const lines = strip(text).trimEnd().split("\n");
  line.textContent = (who ? `${who}: ` : "") + lines[lines.length - 1];
  const whole = make("pre", "sky-wrap");
  write(whole, text);
  node.append(line, whole);
  return node;
}

/** Who of the ranks said nothing, where others did. */
function quiet(model: RunModel, ranks: Rank[]): string {
  if (!model.finished) {
    return "";
  }
  const silent = ranks.filter(
    (rank) => rank.state === "done" && !rank.log.parts.length && !rank.result && !rank.log.gone,
  );
  return silent.length && silent.length < model.ranks.length
    ? `${rankLabel(silent.map((rank) => rank.rank))}: no output`
    : "";
}
