/** Asking a notebook's kernel while a cell runs: by the control channel, which is not behind the cell. */

import type { Host } from "./display-context";
import { knows } from "./kernel-features";
import { type Delta, type Opened, readDelta, readLog, readOpened, readViews, type Snapshot, type ViewFacts } from "./schema";

/** What is used of JupyterLab's kernel connection; widget managers of JupyterLab and Notebook 7 have it too. */
export interface Kernel {
  readonly clientId: string;
  readonly username: string;
  readonly status: string;
  interrupt?(): Promise<void>;
  readonly connectionStatusChanged?: {
    connect(slot: (sender: unknown, status: string) => void): boolean;
    disconnect(slot: (sender: unknown, status: string) => void): boolean;
  };
  sendControlMessage(
    message: never,
    expectReply?: boolean,
    disposeOnDone?: boolean,
  ): { done: Promise<unknown>; dispose(): void };
  readonly iopubMessage: {
    connect(slot: (sender: unknown, message: never) => void): boolean;
    disconnect(slot: (sender: unknown, message: never) => void): boolean;
  };
}

const PATIENCE = 10_000;
// What names our own requests; other kernels know nothing of them.
const OURS = "sky_";
export const VIEW_REQUEST = "sky_view_request";

/** A kernel has answered, and that it does not do or have what was asked for. */
export class Refusal extends Error {}

/** A message for the control channel. */
export function request(kernel: Kernel, type: string, content: Record<string, unknown>, buffers: unknown[] = []): never {
  const header = {
    msg_id: crypto.randomUUID?.() ?? `sky-${Date.now()}-${Math.random()}`,
    msg_type: type,
    session: kernel.clientId,
    username: kernel.username,
    date: new Date().toISOString(),
    version: "5.3",
  };
  return { channel: "control", header, parent_header: {}, metadata: {}, content, buffers } as never;
}

/**
 * Send a request and wait for its answer; one that tells of an error is thrown, as a `Refusal`. `hear` is given the
 * whole reply. A kernel without Sky Jupyter is not asked what it does not know.
 */
export async function ask(
  kernel: Kernel,
  type: string,
  content: Record<string, unknown>,
  patience = PATIENCE,
  hear?: (reply: unknown) => void,
): Promise<Record<string, unknown>> {
  if (type.startsWith(OURS) && !(await knows(kernel, type, patience))) {
    throw new Refusal("the kernel has not loaded sky_jupyter");
  }
  const future = kernel.sendControlMessage(request(kernel, type, content), true, true);
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("the kernel does not answer")), patience);
  });
  try {
    const reply = (await Promise.race([future.done, late])) as
      { content?: Record<string, unknown> } | undefined;
    const answer = reply?.content;
    if (!answer) {
      throw new Error("the kernel gave no answer");
    }
    if (answer.status !== "ok") {
      throw new Refusal(String(answer.message ?? "the kernel refuses it"));
    }
    hear?.(reply);
    return answer;
  } catch (error) {
    future.dispose();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

export async function open(kernel: Kernel, view: string, patience = PATIENCE): Promise<Opened> {
  return readOpened(await ask(kernel, VIEW_REQUEST, { action: "open", view }, patience));
}

export async function listViews(kernel: Kernel): Promise<ViewFacts[]> {
  return readViews(await ask(kernel, VIEW_REQUEST, { action: "views" }));
}

/** The actions of a run's view; see docs/actions.md. */
export function actions(
  kernel: Kernel,
  facts: () => { run: string; pool: string },
): Pick<Host, "interrupt" | "where" | "log"> {
  const asked = (content: Record<string, unknown>) => ask(kernel, "sky_request", content);
  const pool = () => (facts().pool ? { pool: facts().pool } : {});
  const run = () => (facts().run ? { run: facts().run } : {});
  return {
    interrupt: async () => {
      try {
        return String((await asked({ action: "interrupt", ...pool(), ...run() })).message ?? "");
      } catch (error) {
        // The kernel's own interrupt reaches the ranks of the cell that runs as well.
        if (!kernel.interrupt) {
          throw error;
        }
        await kernel.interrupt();
        return "interrupted";
      }
    },
    where: async () => String((await asked({ action: "where", ...pool() })).text ?? ""),
    log: async (rank, from, count, form) => {
      const nodes = readLog(await asked({ action: "log", ...pool(), ...run(), rank, from, count, as: form }));
      if (!nodes.length) {
        throw new Error("no node has the log any more");
      }
      return nodes[0];
    },
  };
}

/** Hears the deltas of one view, and keeps their order: what is missing is asked for. */
export class Subscription {
  private early: [Delta, DataView | undefined][] = [];
  private opening = false;
  private closed = false;
  private readonly slot = (_: unknown, message: never) => this.hear(message);
  // What was told while there was no connection is lost to this page.
  private readonly back = (_: unknown, status: string) => {
    if (status === "connected") {
      this.open().catch(() => undefined);
    }
  };

  /**
   * `load` is given each snapshot, `take` each delta; `take` says false where one is missing. `ended` is given the
   * bundle of a run that is over.
   */
  constructor(
    private kernel: Kernel,
    private view: string,
    private load: (snapshot: Snapshot) => void,
    private take: (delta: Delta, buffer: DataView | undefined) => boolean,
    private ended: (bundle: Record<string, unknown>) => void,
  ) {}

  /** Ask for the run as it is, and follow it; thrown where there is no answer within `patience`. */
  async open(patience = PATIENCE): Promise<void> {
    if (this.opening || this.closed) {
      return;
    }
    this.opening = true;
    this.kernel.iopubMessage.disconnect(this.slot);
    this.kernel.iopubMessage.connect(this.slot);
    this.kernel.connectionStatusChanged?.disconnect(this.back);
    this.kernel.connectionStatusChanged?.connect(this.back);
    try {
      const found = await open(this.kernel, this.view, patience);
      if (this.closed) {
        return;
      }
      if (found.bundle) {
        this.close();
        this.ended(found.bundle);
      } else if (found.run) {
        this.load(found.run);
      }
    } finally {
      this.opening = false;
      const early = this.early;
      this.early = [];
      for (const [delta, buffer] of early) {
        this.give(delta, buffer);
      }
    }
  }

  close(): void {
    this.closed = true;
    this.kernel.iopubMessage.disconnect(this.slot);
    this.kernel.connectionStatusChanged?.disconnect(this.back);
  }

  private hear(message: {
    header: { msg_type: string };
    content: { data?: { content?: { sky?: unknown; view?: unknown } } };
    buffers?: (ArrayBuffer | DataView)[];
  }): void {
    if (message.header.msg_type !== "comm_msg") {
      return;
    }
    const told = message.content.data?.content;
    if (told?.sky !== "delta" || told.view !== this.view) {
      return;
    }
    const buffer = message.buffers?.[0];
    const view = buffer instanceof ArrayBuffer ? new DataView(buffer) : buffer;
    let delta: Delta;
    try {
      delta = readDelta(told, view?.byteLength ?? 0);
    } catch {
      // What it told is in the whole run too.
      this.open().catch(() => undefined);
      return;
    }
    if (this.opening) {
      this.early.push([delta, view]);
    } else {
      this.give(delta, view);
    }
  }

  private give(delta: Delta, buffer: DataView | undefined): void {
    if (!this.closed && !this.take(delta, buffer)) {
      this.early.push([delta, buffer]);
      this.open().catch(() => undefined);
    }
  }
}
