/** The part of the view that scrolls: of each stretch of lines, those that are in sight are on the page. */

import { dress, type DressedLines } from "./wrapped-lines";
import type { Block } from "./filtered-lines";
import { make, paint } from "./dom";
import { rankLabel } from "./folding";
import { Grip } from "./height-grip";
import type { Host } from "./display-context";
import { arrange, ItemBox, pictureOf } from "./item-box";
import { Rows } from "./line-elements";

const LINE = 18;
const OVERSCAN = 10;
// As the style has it: where the newest lines are followed, nothing has to be measured.
const HEIGHT = 420;
const HEIGHT_OF_PICTURES = 640;
const END = 1e8;

/** How lines are shown. */
export interface Look {
  wrap: boolean;
  times: boolean;
}

/** A block on the page. */
class Drawn {
  readonly node: HTMLElement;
  private readonly rows: Rows | undefined;
  private readonly box: ItemBox | undefined;
  private first = -1;
  private count = -1;

  constructor(block: Block) {
    if (block.lines) {
      this.rows = new Rows();
      this.node = make("div", "sky-text");
      this.node.append(this.rows.node);
    } else {
      this.box = new ItemBox();
      this.node = this.box.node;
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
      this.box?.draw(shown, ranks ? rankLabel(ranks) : "", host);
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
  /** As wide as ten letters. */
  private readonly ruler = make("span");
  private lastTop = 0;
  private wrapped = false;
  private blocks: Block[] = [];
  /** The line that was looked for. */
  private marked: { key: object; line: number } | undefined;
  /** By it a person changes the height. */
  readonly grip = new Grip(this.node, () => this.resize());

  /** `above` scrolls with the lines; `scrolled` is told when a person has, and whether up to the top. */
  constructor(
    above: HTMLElement,
    private readonly scrolled: (toTop: boolean) => void,
  ) {
    const probe = make("div", "sky-probe", { "aria-hidden": "true" });
    this.ruler.textContent = "0".repeat(10);
    probe.append(this.ruler);
    this.node.append(above, this.body, probe);
    this.node.addEventListener("scroll", () => this.onScroll());
  }

  /** Nothing that was drawn is of what comes next. */
  reset(): void {
    this.marked = undefined;
    // It stays in sight until that is drawn: nothing jumps.
    this.drawn.clear();
  }

  /** Whether there is more of the lines than is in sight. */
  get large(): boolean {
    const { scrollHeight, clientHeight, scrollWidth, clientWidth } = this.node;
    return scrollHeight > clientHeight + 4 || scrollWidth > clientWidth + 4 || this.wrapped;
  }

  /** How far the end is below what is in sight. */
  get below(): number {
    return this.node.scrollHeight - this.node.scrollTop;
  }

  set below(pixels: number) {
    this.node.scrollTop = this.node.scrollHeight - pixels;
  }

  draw(found: Block[], host: Host, look: Look = { wrap: false, times: false }): void {
    const blocks = this.dress(found, look);
    const pictures = blocks.filter(({ shown }) => shown && pictureOf(shown.item)).length;
    this.node.classList.toggle("sky-rich", pictures > 0);
    arrange(this.body, pictures);
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
    this.grip.draw(this.node.scrollHeight > this.node.clientHeight + 4);
  }

  /** Scroll to a line, and mark it. */
  show(key: object, line: number): void {
    this.marked = { key, line };
    const block = this.blocks.find((one) => one.key === key);
    const node = this.drawn.get(key)?.node;
    if (block && node) {
      const row = (block.lines as DressedLines | undefined)?.row(line) ?? 0;
      const top = node.offsetTop - this.node.offsetTop + row * LINE;
      this.node.scrollTop = Math.max(0, top - this.node.clientHeight / 3);
      this.lastTop = this.node.scrollTop;
    }
  }

  /** It has another height: whoever followed the newest lines still sees them. */
  private resize(): void {
    if (this.following) {
      this.drawEnd(this.blocks);
      this.node.scrollTop = END;
      this.lastTop = this.node.scrollTop;
    } else {
      this.drawSight(this.blocks);
    }
  }

  private dress(blocks: Block[], { wrap, times }: Look): Block[] {
    const letter = wrap ? this.ruler.getBoundingClientRect().width / 10 : 0;
    const columns = letter ? Math.floor((this.body.clientWidth - 4) / letter) : 0;
    this.wrapped = columns > 0 && wrap;
    this.blocks = blocks.map((block) => {
      const marked = this.marked?.key === block.key ? this.marked.line : -1;
      return block.lines ? { ...block, lines: dress(block.lines, { columns, times, marked }) } : block;
    });
    return this.blocks;
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
    const usual = this.node.classList.contains("sky-rich") ? HEIGHT_OF_PICTURES : HEIGHT;
    let left = (this.grip.height ?? usual) + 2 * LINE;
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
