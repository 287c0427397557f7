/** Whether a notebook's plain cells run on a pool, as its kernel says; docs/actions.md. */

import { ask, type Kernel, Refusal } from "../run/kernel-requests";
import { whenEnding } from "../run/kernel-features";

const REQUEST = "sky_auto_request";
const CHANGED = "sky_auto";
const MOST = 300;

type Told = Record<string, unknown>;

/** Follows one kernel at a time; `changed` is called with each change. */
export class AutoState {
  on = false;
  live = false;
  pool = "";
  options = "";
  private kernel: Kernel | undefined;
  /** The session of the process whose messages are heard, and of the one that has ended or is about to. */
  private session: string | undefined;
  private ended: string | undefined;
  private unfollow: () => void = () => undefined;
  private readonly slot = (_: unknown, message: never) => this.hear(message);

  constructor(private readonly changed: () => void) {}

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

  /** Hear another kernel from now on, of which nothing is known yet. */
  follow(kernel: Kernel | undefined): void {
    if (kernel === this.kernel) {
      return;
    }
    this.unfollow();
    this.kernel = kernel;
    this.forget();
    if (kernel) {
      kernel.iopubMessage.connect(this.slot);
      const ending = whenEnding(kernel, () => {
        // As its process ends, the kernel still tells that the pool has ended.
        this.ended = this.session;
        this.forget();
      });
      this.unfollow = () => {
        kernel.iopubMessage.disconnect(this.slot);
        ending();
      };
    } else {
      this.unfollow = () => undefined;
    }
  }

  /** Ask the kernel, if it knows what is asked. */
  async ask(): Promise<void> {
    try {
      await this.send({});
    } catch (error) {
      // A kernel without the extension, or one that is busy to begin: it tells once it has loaded it.
      if (!(error instanceof Refusal)) {
        console.debug(error);
      }
    }
  }

  /** Have plain cells run on the pool, or in the notebook, from the next one on; thrown where that is refused. */
  async turn(on: boolean): Promise<void> {
    await this.send({ on });
  }

  private async send(content: Told): Promise<void> {
    const kernel = this.kernel;
    if (!kernel) {
      throw new Error("the notebook has no kernel");
    }
    const told = await ask(kernel, REQUEST, content);
    if (kernel === this.kernel) {
      this.take(told);
    }
  }

  private hear(message: { header: { msg_type: string; session: string }; content: Told }): void {
    if (message.header.session === this.ended) {
      return;
    }
    this.session = message.header.session;
    if (message.header.msg_type === CHANGED) {
      this.take(message.content);
    }
  }

  private take(told: Told): void {
    this.on = told.on === true;
    this.live = told.live === true;
    this.pool = text(told.pool);
    this.options = text(told.options);
    this.changed();
  }

  private forget(): void {
    this.take({});
  }
}

function text(value: unknown): string {
  return typeof value === "string" ? value.slice(0, MOST) : "";
}
