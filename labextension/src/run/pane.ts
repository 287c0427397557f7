/** The part of the view that scrolls: of each stretch of lines, those that are in sight are on the page. */

import type { Block } from "./blocks";
import { make } from "./dom";
import { rankLabel } from "./fold";
import type { Host } from "./host";

export const LINE = 18;
const OVERSCAN = 10;
const HEIGHT = 420;

interface Drawn {
  node: HTMLElement;
  pre?: HTMLElement;
  first: number;
  html: string;
  version: number;
}

export class Pane {
  readonly node = make("div", "sky-log", { role: "log", "aria-live": "off", tabindex: "0" });
  /** Whether the newest lines are shown as they come. */
  following = true;
  private readonly body = make("div", "sky-body");
  private drawn = new Map<object, Drawn>();
  private lastTop = 0;

  /** `above` and `below` scroll with the lines; `scrolled` is told when a person has, and whether up to the top. */
  constructor(
    above: HTMLElement,
    below: HTMLElement,
    private readonly scrolled: (toTop: boolean) => void,
  ) {
    this.node.append(above, this.body, below);
    this.node.addEventListener("scroll", () => this.onScroll());
  }

  /** Nothing that was drawn is of what comes next. */
  reset(): void {
    this.drawn.clear();
    this.body.textContent = "";
  }

  /** Whether there are more lines than are in sight. */
  get long(): boolean {
    return this.node.scrollHeight > this.node.clientHeight + 4;
  }

  /** How far the end is below what is in sight. */
  get below(): number {
    return this.node.scrollHeight - this.node.scrollTop;
  }

  set below(pixels: number) {
    this.node.scrollTop = this.node.scrollHeight - pixels;
  }

  /** `told` says whether items are marked with their ranks; `live` whether more may come. */
  draw(blocks: Block[], host: Host, told: boolean, live: boolean): void {
    const shift = this.place(blocks, host, told);
    if (this.following && live) {
      this.node.scrollTop = this.node.scrollHeight;
    } else if (shift > 0) {
      // Lines that went at the top would move all others.
      this.node.scrollTop -= shift * LINE;
    }
    this.lastTop = this.node.scrollTop;
    this.drawLines(blocks);
  }

  /** Put the blocks' nodes in order; how many lines went at the top. */
  private place(blocks: Block[], host: Host, told: boolean): number {
    const fresh = new Map<object, Drawn>();
    let shift = 0;
    blocks.forEach((block, index) => {
      const drawn = this.drawn.get(block.key) ?? begin(block, told);
      fresh.set(block.key, drawn);
      if (this.body.children[index] !== drawn.node) {
        this.body.insertBefore(drawn.node, this.body.children[index] ?? null);
      }
      if (block.lines) {
        shift += drawn.first >= 0 ? block.lines.first - drawn.first : 0;
        drawn.first = block.lines.first;
        drawn.node.style.height = `${block.lines.count * LINE}px`;
      } else if (block.shown && drawn.version !== block.shown.version) {
        drawn.version = block.shown.version;
        host.draw(block.shown.item, drawn.node.lastElementChild as HTMLElement);
      }
    });
    while (this.body.children.length > blocks.length) {
      this.body.lastElementChild?.remove();
    }
    this.drawn = fresh;
    return shift;
  }

  private drawLines(blocks: Block[]): void {
    const top = this.node.scrollTop;
    const height = this.node.clientHeight || HEIGHT;
    for (const block of blocks) {
      const drawn = this.drawn.get(block.key);
      if (!block.lines || !drawn?.pre) {
        continue;
      }
      const offset = drawn.node.offsetTop - this.node.offsetTop;
      const from = Math.max(0, Math.floor((top - offset) / LINE) - OVERSCAN);
      const to = Math.min(block.lines.count, Math.ceil((top + height - offset) / LINE) + OVERSCAN);
      let html = "";
      for (let index = from; index < to; index++) {
        html += `<div class="sky-row">${block.lines.html(index)}</div>`;
      }
      if (html !== drawn.html) {
        drawn.html = html;
        drawn.pre.innerHTML = html;
      }
      drawn.pre.style.top = `${from * LINE}px`;
    }
  }

  private onScroll(): void {
    const room = this.node.scrollHeight - this.node.clientHeight;
    if (room <= 4) {
      return;
    }
    const atEnd = this.node.scrollTop >= room - LINE;
    // Growing does not move what is in sight: only a person goes up.
    if (atEnd || this.node.scrollTop < this.lastTop - 1) {
      this.following = atEnd;
    }
    this.lastTop = this.node.scrollTop;
    this.scrolled(this.node.scrollTop === 0 && !this.following);
  }
}

function begin(block: Block, told: boolean): Drawn {
  if (block.lines) {
    const node = make("div", "sky-text");
    const pre = make("pre");
    node.append(pre);
    return { node, pre, first: -1, html: "", version: -1 };
  }
  const node = make("div", "sky-item");
  if (told && block.shown) {
    const who = make("div", "sky-who");
    who.textContent = rankLabel(block.shown.ranks);
    node.append(who);
  }
  node.append(make("div"));
  return { node, first: -1, html: "", version: -1 };
}
