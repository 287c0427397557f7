// Keeps the list up to date: the server says when it has changed; where nothing is heard, it is asked now and then.
import { Poll } from "@lumino/polling";
import { Signal } from "@lumino/signaling";

import { CHANGED, type Client, type Pool } from "./client";

/** Events of the server, as its event manager streams them. */
export type Events = AsyncIterable<{ schema_id: string }>;

export class Watcher {
  pools: Pool[] = [];
  /** Why the list could not be had; empty when it could. */
  problem = "";
  readonly changed = new Signal<this, void>(this);
  private readonly poll: Poll;
  private disposed = false;

  /** @param seconds between two questions, where no event comes. */
  constructor(
    private readonly client: Client,
    events: Events | null,
    seconds: number,
  ) {
    this.poll = new Poll({
      name: "sky-jupyter:pools",
      factory: () => this.read(),
      frequency: { interval: seconds * 1000, backoff: true, max: 300_000 },
      standby: "when-hidden",
    });
    if (events) {
      void this.listen(events);
    }
  }

  /** How many seconds there are between two questions. */
  set seconds(value: number) {
    this.poll.frequency = { ...this.poll.frequency, interval: value * 1000 };
  }

  /** Ask now. */
  async refresh(): Promise<void> {
    await this.poll.refresh();
    await this.poll.tick;
  }

  dispose(): void {
    this.disposed = true;
    this.poll.dispose();
    Signal.clearData(this);
  }

  private async read(): Promise<void> {
    try {
      this.pools = await this.client.list();
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      throw error; // the poll asks less often then
    } finally {
      if (!this.disposed) {
        this.changed.emit();
      }
    }
  }

  private async listen(events: Events): Promise<void> {
    for await (const event of events) {
      if (this.disposed) {
        return;
      }
      if (event.schema_id === CHANGED) {
        void this.poll.refresh();
      }
    }
  }
}
