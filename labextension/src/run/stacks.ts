/** Where each rank is: a part of the view that is opened and closed, and that says what could not be done. */

import { write } from "./coloured-text";
import { make, mark, reason } from "./dom";

export class Stacks {
  readonly node = make("div", "sky-where", { role: "group", "aria-label": "Where each rank is", tabindex: "0" });

  /** `button` opens and closes it. */
  constructor(readonly button: HTMLButtonElement) {
    this.close();
  }

  /** Close it, or open it with what `ask` brings. */
  async toggle(ask: () => Promise<string>): Promise<void> {
    if (!this.node.hidden) {
      this.close();
      return;
    }
    this.show("…");
    try {
      this.show(await ask());
    } catch (error) {
      this.show(reason(error));
    }
  }

  show(text: string): void {
    this.open(true);
    const lines = make("pre", "sky-wrap");
    write(lines, text);
    this.node.replaceChildren(lines);
  }

  close(): void {
    this.open(false);
  }

  private open(on: boolean): void {
    if (this.node.hidden === on || !this.button.hasAttribute("aria-expanded")) {
      this.node.hidden = !on;
      mark(this.button, "aria-expanded", String(on));
    }
  }
}
