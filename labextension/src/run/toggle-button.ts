/** A button of a run's header that is on or off; this browser remembers it for all runs. */

import { rename } from "../page/icons";
import { mark, store, stored } from "./dom";

export class Toggle {
  private kept: string;

  /** `name` is what it is called, `tip` what it does. */
  constructor(
    private readonly button: HTMLButtonElement,
    name: string,
    tip: string,
  ) {
    this.kept = `sky-${name.toLowerCase()}`;
    rename(button, name, tip);
    mark(button, "aria-pressed", String(stored(this.kept) === "on"));
  }

  get on(): boolean {
    return this.button.getAttribute("aria-pressed") === "true";
  }

  /** Change it. */
  turn(): void {
    mark(this.button, "aria-pressed", String(!this.on));
    store(this.kept, this.on ? "on" : "off");
  }
}
