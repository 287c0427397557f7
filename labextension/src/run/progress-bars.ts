/** Progress bars of the ranks: one each, or one of the slowest alone. */

import { rename } from "../page/icons";
import { make, mark, say, store, stored } from "./dom";
import type { RunModel } from "./model";
import { MOST_TABS } from "./rank-grid";
import { fraction, Progress, slowest } from "./parse-progress";
import { ALL } from "./viewport";

const MODES = ["each", "slowest", "off"] as const;
type Mode = (typeof MODES)[number];
const TOLD: Record<Mode, string> = { each: "Show: per rank", slowest: "Show: slowest", off: "Show: no bars" };
const KEPT = "sky-bars";

export class Bars {
  readonly node = make("div", "sky-bars");
  private mode: Mode = MODES.find((mode) => mode === stored(KEPT)) ?? "each";

  /** Go on to the next way of showing them. */
  change(): void {
    this.mode = MODES[(MODES.indexOf(this.mode) + 1) % MODES.length];
    store(KEPT, this.mode);
  }

  /** Draw those of a tab; `button` is the one that changes how. */
  draw(model: RunModel, tab: number, button: HTMLButtonElement): void {
    const several = model.ranks.length > 1;
    const found: [number, Progress][] = [];
    for (const rank of model.finished ? [] : model.ranks) {
      const progress = rank.state === "running" ? rank.progress : undefined;
      if (progress) {
        found.push([rank.rank, progress]);
      }
    }
    rename(button, TOLD[this.mode], `Progress bars. ${TOLD[this.mode]}`);
    // While a run goes on it is there, so that nothing moves when a bar comes.
    button.hidden = !several || model.finished;
    button.disabled = !found.length;
    const here = found.filter(([rank]) => tab === ALL || tab === rank);
    const last = slowest(here);
    // Of very many the slowest tells most, and the others would leave no room for lines.
    const slow = several && (this.mode === "slowest" || here.length > MOST_TABS);
    const shown = this.mode === "off" || !last ? [] : slow ? [last] : here;
    while (this.node.children.length > shown.length) {
      this.node.lastElementChild?.remove();
    }
    while (this.node.children.length < shown.length) {
      const row = make("div", "sky-bar");
      row.append(make("span"), make("progress", "", { max: "1" }), make("span"));
      this.node.append(row);
    }
    shown.forEach(([rank, progress], index) => {
      const who = several ? `${slow ? "slowest, " : ""}rank ${rank}` : "";
      drawBar(this.node.children[index], who, progress);
    });
    this.node.hidden = shown.length === 0;
  }
}

function drawBar(row: Element, who: string, progress: Progress): void {
  const [name, bar, aside] = row.children as unknown as [HTMLElement, HTMLProgressElement, HTMLElement];
  const label = [who, progress.label].filter(Boolean).join(" · ") || "progress";
  say(name, label);
  bar.value = fraction(progress);
  mark(bar, "aria-label", label);
  const percent = `${Math.floor(100 * fraction(progress))}%`;
  say(bar, percent);
  say(aside, [percent, progress.aside].filter(Boolean).join(" · "));
}
