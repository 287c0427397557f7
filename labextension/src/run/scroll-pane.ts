/** The part of the view that scrolls: of each stretch of lines, those that are in sight are on the page. */

import type { Block } from "./filtered-lines";
import { make, paint, say } from "./dom";
import { rankLabel } from "./folding";
import type { Host } from "./display-context";
import { Rows } from "./line-elements";

const LINE = 18;
const OVERSCAN = 10;
// As the style has it: where the newest lines are followed, nothing has to be measured.
const HEIGHT = 420;
const END = 1e8;

/** A block on the page. */
class Drawn {
  readonly node: HTMLElement;
  private readonly who = make("div", "sky-who");
  private readonly place = make("div");
  private readonly rows: Rows | undefined;
  private first = -1;
  private count = -1;
  private version = -1;

  constructor(block: Block) {
    this.node = make("div", block.lines ? "sky-text" : "sky-item");
    if (block.lines) {
      this.rows = new Rows();
      this.node.append(this.rows.node);
    } else {
      this.node.append(...(block.ranks ? [this.who] : []), this.place);
    }
  }

  /** Bring it up to date but for its lines; how many of these went at the top. */
  fit({ lines, shown, ranks }: Block, host: Host): number {
    let gone = 0;
    if (lines) {
      gone = this.first >= 0 ? lines.first - this.first : 0;
      this.first = lines.first;
      if (lines.count !== this.count) {
        this.count = lines.count;
        paint(this.node, [["height", `${lines.count * LINE}px`]]);
      }
    } else if (shown) {
      say(this.who, ranks ? rankLabel(ranks) : "");
      if (this.version !== shown.version) {
        this.version = shown.version;
        host.draw(shown.item, this.place);
      }
    }
    return gone;
  }

  /** Put lines on the page. */
  draw({ lines }: Block, from: number, to: number): void {
    if (lines) {
      this.rows?.draw(lines, Math.max(0, from), Math.min(lines.count, to), LINE);
    }
  }
}

export class ScrollPane {
  readonly node = make("div", "sky-log", { role: "log", "aria-live": "off", tabindex: "0" });
  /** Whether the newest lines are shown as they come. */
  following = true;
  private readonly body = make("div", "sky-body");
  private drawn = new Map<object, Drawn>();
  private lastTop = 0;

  /** `above` scrolls with the lines; `scrolled` is told when a person has, and whether up to the top. */
  constructor(
    above: HTMLElement,
    private readonly scrolled: (toTop: boolean) => void,
  ) {
    this.node.append(above, this.body);
    this.node.addEventListener("scroll", () => this.onScroll());
  }

  /** Nothing that was drawn is of what comes next. */
  reset(): void {
    // It stays in sight until that is drawn: nothing jumps.
    this.drawn.clear();
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

  draw(blocks: Block[], host: Host): void {
    const gone = this.place(blocks, host);
    if (this.following) {
      this.drawEnd(blocks);
      // The page is laid out once for this, with all that has changed.
      this.node.scrollTop = END;
    } else {
      if (gone > 0) {
        // Lines that went at the top would move all others.
        this.node.scrollTop -= gone * LINE;
      }
      this.drawSight(blocks);
    }
    this.lastTop = this.node.scrollTop;
  }

  /** Put the blocks' nodes in order; how many lines went at the top. */
  private place(blocks: Block[], host: Host): number {
    const fresh = new Map<object, Drawn>();
    let gone = 0;
    let next = this.body.firstElementChild;
    for (const block of blocks) {
      const drawn = this.drawn.get(block.key) ?? new Drawn(block);
      fresh.set(block.key, drawn);
      if (next === drawn.node) {
        next = next.nextElementSibling;
      } else {
        this.body.insertBefore(drawn.node, next);
      }
      gone += drawn.fit(block, host);
    }
    while (next) {
      const last = next;
      next = next.nextElementSibling;
      last.remove();
    }
    this.drawn = fresh;
    return gone;
  }

  /** The last lines, without looking at the page. */
  private drawEnd(blocks: Block[]): void {
    let left = HEIGHT + 2 * LINE;
    for (const block of [...blocks].reverse()) {
      const count = block.lines?.count ?? 1;
      this.drawn.get(block.key)?.draw(block, left > 0 ? count - Math.ceil(left / LINE) : count, count);
      left -= count * LINE;
    }
  }

  /** The lines that are in sight. */
  private drawSight(blocks: Block[]): void {
    const top = this.node.scrollTop;
    const height = this.node.clientHeight || HEIGHT;
    // All is measured before anything is changed.
    const offsets = blocks.map((block) => (this.drawn.get(block.key)?.node.offsetTop ?? 0) - this.node.offsetTop);
    blocks.forEach((block, index) => {
      const from = Math.floor((top - offsets[index]) / LINE) - OVERSCAN;
      const to = Math.ceil((top + height - offsets[index]) / LINE) + OVERSCAN;
      this.drawn.get(block.key)?.draw(block, from, to);
    });
  }

  private onScroll(): void {
    const top = this.node.scrollTop;
    const room = this.node.scrollHeight - this.node.clientHeight;
    // What was scrolled by following is no news.
    if (room <= 4 || top === this.lastTop) {
      return;
    }
    const atEnd = top >= room - LINE;
    // Growing does not move what is in sight: only a person goes up.
    if (atEnd || top < this.lastTop - 1) {
      this.following = atEnd;
    }
    this.lastTop = top;
    this.scrolled(top === 0 && !this.following);
  }
}
