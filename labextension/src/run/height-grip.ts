/** The edge below the box of lines, by which a person makes that higher or lower: by mouse, touch or arrow keys. */

import { make, mark, paint } from "./dom";

const STEP = 36;
const LEAST = 54;
const MOST = 5000;

export class Grip {
  readonly node = make("div", "sky-grip", {
    role: "separator",
    tabindex: "0",
    "aria-orientation": "horizontal",
    "aria-label": "Height of the lines",
    "aria-valuemin": String(LEAST),
    title: "Drag to change the height; double-click for the usual one",
  });
  /** The most that the box may have; undefined for the usual. */
  height: number | undefined;

  /** `box` is what gets higher; `changed` is told when it has. */
  constructor(
    private readonly box: HTMLElement,
    private readonly changed: () => void,
  ) {
    this.node.hidden = true;
    this.node.addEventListener("pointerdown", (event) => this.drag(event));
    this.node.addEventListener("dblclick", () => this.set(undefined));
    this.node.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** `large` says whether there is anything to make room for. */
  draw(large: boolean): void {
    this.node.hidden = !large && this.height === undefined;
    if (!this.node.hidden) {
      mark(this.node, "aria-valuenow", String(Math.round(this.box.clientHeight)));
    }
  }

  private set(height: number | undefined): void {
    this.height = height === undefined ? undefined : Math.round(Math.min(MOST, Math.max(LEAST, height)));
    paint(this.box, [["max-height", this.height === undefined ? "var(--sky-height)" : `${this.height}px`]]);
    this.changed();
  }

  private drag(event: PointerEvent): void {
    if (event.button !== 0) {
      return;
    }
    event.preventDefault();
    this.node.focus();
    const [from, height] = [event.clientY, this.box.clientHeight];
    const move = (now: PointerEvent) => this.set(height + now.clientY - from);
    const end = () => {
      this.node.removeEventListener("pointermove", move);
      this.node.removeEventListener("pointerup", end);
      this.node.removeEventListener("pointercancel", end);
    };
    this.node.setPointerCapture(event.pointerId);
    this.node.addEventListener("pointermove", move);
    this.node.addEventListener("pointerup", end);
    this.node.addEventListener("pointercancel", end);
  }

  private onKey(event: KeyboardEvent): void {
    const step = { ArrowDown: STEP, ArrowUp: -STEP }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      this.set(this.box.clientHeight + step);
    }
  }
}
