/** The tabs of the run view: one of all ranks, and one a rank with its state and its bar. */

import { make, mark, paint, say } from "./dom";
import type { Rank } from "./model";
import { MOST_TABS } from "./rank-grid";
import { fraction } from "./parse-progress";
import { ALL } from "./viewport";
import { tabAfter } from "./run-status";

// With more ranks than this, a tab has the number alone.
const ROOM = 8;

export class Tabs {
  readonly node = make("div", "sky-tabs", { role: "tablist", "aria-label": "Output" });

  /** `panel` is what the tabs change; `choose` is told the tab that a person chose. */
  constructor(
    private readonly id: string,
    private readonly panel: HTMLElement,
    private readonly choose: (tab: number) => void,
  ) {
    panel.id = `${id}-panel`;
    this.node.addEventListener("keydown", (event) => this.onKey(event));
  }

  draw(ranks: Rank[], chosen: number): void {
    this.node.hidden = ranks.length < 2 || ranks.length > MOST_TABS;
    if (this.node.hidden) {
      this.panel.removeAttribute("role");
      this.panel.removeAttribute("aria-label");
      return;
    }
    if (this.node.children.length !== ranks.length + 1) {
      const tabs = [ALL, ...ranks.map((rank) => rank.rank)];
      this.node.replaceChildren(...tabs.map((tab) => this.make(tab, ranks.length > ROOM)));
    }
    for (const [index, button] of ([...this.node.children] as HTMLElement[]).entries()) {
      const selected = Number(button.dataset.tab) === chosen;
      if (button.getAttribute("aria-selected") !== String(selected)) {
        mark(button, "aria-selected", String(selected));
        button.tabIndex = selected ? 0 : -1;
      }
      if (index > 0) {
        drawChip(button, ranks[index - 1]);
      }
    }
    const label = `${this.id}-tab-${chosen}`;
    if (this.panel.getAttribute("aria-labelledby") !== label || !this.panel.hasAttribute("role")) {
      mark(this.panel, "role", "tabpanel");
      mark(this.panel, "aria-labelledby", label);
    }
  }

  private make(tab: number, narrow: boolean): HTMLElement {
    const button = make("button", "", {
      type: "button",
      role: "tab",
      id: `${this.id}-tab-${tab}`,
      "aria-controls": this.panel.id,
    });
    button.dataset.tab = String(tab);
    const name = make("span");
    name.textContent = tab === ALL ? "All" : `${narrow ? "" : "rank "}${tab}`;
    if (tab === ALL) {
      button.append(name);
    } else {
      const bar = make("span", "sky-chip-bar", { "aria-hidden": "true" });
      bar.hidden = true;
      bar.append(make("i"));
      button.append(make("span", "sky-dot", { "aria-hidden": "true" }), name, make("span", "sky-hidden"), bar);
    }
    button.addEventListener("click", () => this.choose(tab));
    return button;
  }

  private onKey(event: KeyboardEvent): void {
    const order = [...this.node.children] as HTMLElement[];
    const root = this.node.getRootNode() as Document | ShadowRoot;
    const at = order.indexOf(root.activeElement as HTMLElement);
    const target = at < 0 ? undefined : tabAfter(event.key, at, order.length);
    if (target !== undefined) {
      event.preventDefault();
      this.choose(Number(order[target].dataset.tab));
      order[target].focus();
    }
  }
}

function drawChip(button: HTMLElement, rank: Rank): void {
  const word = rank.waits || rank.state;
  if (button.dataset.state !== rank.state || button.dataset.word !== word) {
    button.dataset.state = rank.state;
    button.dataset.word = word;
    button.title = `rank ${rank.rank}: ${word}`;
    // Others are told by their colour, and to who does not see it.
    button.children[2].className = rank.waits ? "sky-chip-waits" : "sky-hidden";
    say(button.children[2] as HTMLElement, word);
  }
  const bar = button.children[3] as HTMLElement;
  const progress = rank.state === "running" ? rank.progress : undefined;
  bar.hidden = !progress;
  if (progress) {
    paint(bar.firstElementChild as HTMLElement, [["width", `${(100 * fraction(progress)).toFixed(1)}%`]]);
  }
}
