/** A rich item on the page: whose it is, what the host draws of it, and of a picture a button that opens it in a tab. */

import { openPicture } from "../page/dom";
import { iconButton } from "../page/icons";
import { make, say } from "./dom";
import type { Host } from "./display-context";
import type { Item, Shown } from "./rank-output";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/svg+xml"] as const;
/** A page that has tabs of its own takes this event, with what is to be shown. */
export const OPEN = "sky-open-picture";

export interface Opened {
  kind: (typeof PICTURES)[number];
  data: string;
  title: string;
}

export class ItemBox {
  readonly node = make("div", "sky-item");
  private readonly who = make("div", "sky-who");
  private readonly place = make("div");
  private readonly button = iconButton("open", "Open in a tab", () => this.open());
  private item: Item | undefined;
  private version = -1;

  constructor() {
    this.button.classList.add("sky-open");
    this.node.append(this.who, this.button, this.place);
  }

  /** Draw it where it has changed; `who` says whose it is, and nothing where that needs no saying. */
  draw(shown: Shown, who: string, host: Host): void {
    say(this.who, who);
    this.who.hidden = !who;
    if (this.item !== shown.item || this.version !== shown.version) {
      this.item = shown.item;
      this.version = shown.version;
      const kind = pictureOf(shown.item);
      this.button.hidden = kind === undefined;
      this.node.classList.toggle("sky-picture", kind !== undefined);
      host.draw(shown.item, this.place);
    }
  }

  private open(): void {
    const kind = this.item && pictureOf(this.item);
    if (!this.item || !kind) {
      return;
    }
    const value = this.item.data[kind];
    const data = Array.isArray(value) ? value.join("") : String(value);
    const detail: Opened = { kind, data, title: this.who.textContent || "Picture" };
    const taken = !this.node.dispatchEvent(new CustomEvent(OPEN, { bubbles: true, cancelable: true, composed: true, detail }));
    if (!taken) {
      openPicture(kind, data, detail.title);
    }
  }
}

/** The kind of picture that an item is; undefined where it is none. */
export function pictureOf(item: Item): Opened["kind"] | undefined {
  return PICTURES.find((kind) => kind in item.data);
}

/** Have so many pictures in a node stand beside each other, as many as there is room for. */
export function arrange(node: HTMLElement, pictures: number): void {
  const columns = { 2: 2, 4: 4 }[pictures] ?? 3;
  node.classList.toggle("sky-many", pictures > 1);
  node.classList.toggle("sky-three", columns === 3);
  node.classList.toggle("sky-four", columns === 4);
}
