/** Whether a notebook's plain cells run on a pool, as its kernel says; docs/actions.md. */

import { FollowedState, text, type Told } from "../run/kernel-state";

/** What the switch shows and changes. */
export class AutoState extends FollowedState {
  on = false;
  live = false;
  pool = "";
  options = "";

  constructor(changed: () => void) {
    super("sky_auto_request", "sky_auto", changed);
  }

  /** What the switch says, and whether there is anything to switch. */
  get texts(): { shown: boolean; label: string; caption: string } {
    const shown = this.on || this.live;
    const label = this.on && !this.live ? `Pool ${this.pool} has ended` : `Cells on ${this.pool}`;
    const above = `%%sky ${this.options}`.trim();
    const caption = this.on
      ? `Each cell runs on pool ${this.pool}, as below ${above}; %%local runs one in the notebook`
      : `Run each cell on pool ${this.pool}, without %%sky above it`;
    return { shown, label, caption };
  }

  /** Have plain cells run on the pool, or in the notebook, from the next one on; thrown where that is refused. */
  async turn(on: boolean): Promise<void> {
    await this.send({ on });
  }

  protected override read(told: Told): void {
    this.on = told.on === true;
    this.live = told.live === true;
    this.pool = text(told.pool);
    this.options = text(told.options);
  }
}
