/** The badge of a run's pool in the header: it opens and closes the pool's panel below. */

import { make, mark, say } from "./dom";
import type { PanelPlace } from "./display-context";

export class Badge {
  readonly node = make("button", "sky-badge", { type: "button", "aria-expanded": "false" });
  readonly place = make("div", "sky-badge-place");
  private panel: PanelPlace | undefined;

  /** `open` makes the panel in a place. */
  constructor(open: (place: HTMLElement) => PanelPlace | undefined) {
    this.place.hidden = true;
    this.node.addEventListener("click", () => {
      if (this.panel) {
        this.shut();
      } else {
        this.panel = open(this.place);
        this.show(this.panel !== undefined);
        this.panel?.attach();
      }
    });
  }

  /** `can` says whether there is somebody to ask how the pool is. */
  draw(pool: string, can: boolean): void {
    say(this.node, `Pool ${pool}`);
    this.node.hidden = !can || !pool;
    if (this.node.hidden && this.panel) {
      this.shut();
    }
  }

  /** The view is on the page. */
  attach(): void {
    this.panel?.attach();
  }

  /** It is not any more. */
  detach(): void {
    this.panel?.detach();
  }

  private shut(): void {
    this.panel?.detach();
    this.panel = undefined;
    this.place.textContent = "";
    this.show(false);
  }

  private show(open: boolean): void {
    this.place.hidden = !open;
    mark(this.node, "aria-expanded", String(open));
  }
}
