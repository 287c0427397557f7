/** The run view's header: how the run fares, and the buttons of what can be done. */

import { type IconName, iconButton, rename } from "../page/icons";
import { make, mark, say } from "./dom";
import { rankLabel } from "./folding";
import type { Host } from "./display-context";
import type { RunModel } from "./model";
import { duration, status } from "./run-status";

// The clock goes on so many times a second, however often something comes: all around it is laid out anew.
const TICKS = 5;
// A run that has said nothing for so many seconds is said to be silent.
const SILENT = 5;

/** What is looked at: whether the newest lines, how many came since they are held, and whether those of all ranks. */
export interface Sight {
  following: boolean;
  fresh: number;
  ofAll: boolean;
}

export class Header {
  readonly node = make("div", "sky-head");
  readonly search = make("input", "", {
    type: "search",
    placeholder: "Filter",
    "aria-label": "Show only lines with this text",
  });
  private readonly dot = make("span", "sky-dot", { "aria-hidden": "true" });
  private readonly title = make("span", "sky-title");
  private readonly facts = make("span", "sky-facts");
  private readonly tools = make("div", "sky-tools", { role: "group", "aria-label": "Of this run" });
  private readonly buttons: Record<string, HTMLButtonElement> = {};
  private tick = "";

  constructor() {
    this.node.append(this.dot, this.title, this.facts, this.tools);
  }

  /** Put a badge beside the facts. */
  badge(node: HTMLElement): void {
    this.node.insertBefore(node, this.tools);
  }

  /** Put a button after those that are there. What may go or grow comes first: what is right of it keeps its place. */
  add(name: string, icon: IconName, label: string, act: () => void): HTMLButtonElement {
    const button = iconButton(icon, label, act);
    // A command of this name presses it.
    button.dataset.tool = name;
    this.buttons[name] = button;
    this.tools.append(button);
    return button;
  }

  /** Put the filter behind the buttons that are there. */
  addFilter(): void {
    this.tools.append(this.search);
  }

  /** `large` says whether there is more of the lines than is in sight. */
  draw(model: RunModel, host: Host, { following, fresh, ofAll }: Sight, large: () => boolean): void {
    if (this.dot.dataset.state !== model.state) {
      this.dot.dataset.state = model.state;
    }
    // The name alone says nothing.
    say(this.title, model.title === "sky" ? "" : model.title);
    this.drawFacts(model);
    const live = !model.finished;
    mark(this.node, "data-state", live ? "running" : "over");
    const { interrupt, where, follow, download, error, similar, wrap, times } = this.buttons;
    interrupt.hidden = !live || !host.interrupt;
    where.hidden = !live || !host.where;
    follow.hidden = !live && (following || fresh === 0);
    const words = following ? "Pause" : fresh > 0 ? `Follow (${fresh.toLocaleString("en")} new)` : "Follow";
    const tip = following ? "Pause: keep the lines still" : "Follow: show the newest lines as they come";
    rename(follow, words, tip, following ? "pause" : "follow");
    follow.classList.toggle("sky-told", !following && fresh > 0);
    const small = !live && this.search.value === "" && !large();
    for (const tool of [this.search, download, error, wrap, times]) {
      tool.hidden = small;
    }
    // It stays where it is in the tab of a rank, where it does nothing.
    similar.hidden = small || model.ranks.length < 2;
    similar.disabled = !ofAll;
  }

  private drawFacts(model: RunModel): void {
    const count = model.every.length;
    const shown = model.unseen.length ? `, output of ${rankLabel(model.ranks.map((rank) => rank.rank))}` : "";
    const words = [...status(model), model.costText].filter(Boolean);
    const tick = [model.finished, Math.floor(model.elapsed * TICKS), count, ...words].join();
    if (tick === this.tick) {
      return;
    }
    this.tick = tick;
    const beat = String(Math.floor(model.elapsed) % 2);
    if (this.dot.dataset.beat !== beat) {
      this.dot.dataset.beat = beat;
    }
    const facts = [`${count} rank${count === 1 ? "" : "s"}${shown}`, duration(model.elapsed), ...words];
    if (!model.finished && model.idle >= SILENT) {
      facts.push(`silent for ${duration(Math.floor(model.idle)).replace(".0 s", " s")}`);
    }
    say(this.facts, facts.join(" · "));
    // In a narrow page its end may be out of sight.
    this.facts.title = facts.join(" · ");
  }
}
