/** What a kernel says of itself by a request and a message on iopub, such as whether `%sky auto` is on. */

import { ask, type Kernel, Refusal } from "./kernel-requests";
import { whenEnding } from "./kernel-features";

const MOST = 300;

export type Told = Record<string, unknown>;

/** Follows one kernel at a time; `changed` is called with each change. */
export abstract class FollowedState {
  private kernel: Kernel | undefined;
  /** The session of the process whose messages are heard, and of the one that has ended or is about to. */
  private session: string | undefined;
  private ended: string | undefined;
  private unfollow: () => void = () => undefined;
  private readonly slot = (_: unknown, message: never) => this.hear(message);

  /** `requestType` asks for the state, `messageType` tells it. */
  constructor(
    private readonly requestType: string,
    private readonly messageType: string,
    private readonly changed: () => void,
  ) {}

  /** Take what the kernel tells; nothing of it is known, or is what it should be, where the kernel is another. */
  protected abstract read(told: Told): void;

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

  /** Send a request, and take its answer. */
  protected async send(content: Told, patience?: number): Promise<void> {
    const kernel = this.kernel;
    if (!kernel) {
      throw new Error("the notebook has no kernel");
    }
    const told = await ask(kernel, this.requestType, content, patience);
    if (kernel === this.kernel) {
      this.take(told);
    }
  }

  private hear(message: { header: { msg_type: string; session: string }; content: Told }): void {
    if (message.header.session === this.ended) {
      return;
    }
    this.session = message.header.session;
    if (message.header.msg_type === this.messageType) {
      this.take(message.content);
    }
  }

  private take(told: Told): void {
    this.read(told);
    this.changed();
  }

  private forget(): void {
    this.take({});
  }
}

export function text(value: unknown): string {
  return typeof value === "string" ? value.slice(0, MOST) : "";
}
