/** Widgets of ranks: drawn by the notebook's widget manager, which has them by the comms in the notebook's kernel. */

import { ask, type Kernel, request } from "./kernel-requests";
import type { Item } from "./rank-output";
import { readOpenings } from "./schema";

export const VIEW = "application/vnd.jupyter.widget-view+json";

const REQUEST = "sky_widgets_request";

interface Comm {
  send(data: unknown, metadata?: unknown, buffers?: unknown[]): unknown;
}

/** What is used of JupyterLab's kernel connection where it has comms; what begins with `_` is not for everyone. */
export interface CommKernel extends Kernel {
  hasComm?(id: string): boolean;
  _handleCommOpen?(message: unknown): Promise<void>;
  readonly _comms?: Map<string, Comm>;
}

// A comm that is new comes by itself; after so long the kernel is asked, and so long the notebook's manager may take.
const BY_ITSELF = 1000;
const PATIENCE = 15_000;
const PAUSE = 100;

const NO_MANAGER =
  "This is a widget of a rank, shown as text: `pip install ipywidgets` where JupyterLab is installed, and reload the page.";
const NOT_ALIVE = "This widget is no longer alive: its rank, pool or notebook has ended.";

/** The id of the widget that an item shows; `undefined` where it shows none. */
export function widgetOf(item: Item): string | undefined {
  const id = (item.data[VIEW] as { model_id?: unknown } | undefined)?.model_id;
  return typeof id === "string" ? id : undefined;
}

/** The item as text, and why it is not more. */
export function asText(item: Item, why: string): Item {
  const data = { ...item.data };
  delete data[VIEW];
  const text = typeof data["text/plain"] === "string" ? data["text/plain"] : "";
  return { ...item, data: { ...data, "text/plain": `${text}\n${why}`.trim() } };
}

export const words = { noManager: NO_MANAGER, notAlive: NOT_ALIVE };

const pause = (time: number) => new Promise((resolve) => setTimeout(resolve, time));

/** Wait until a page's kernel connection, which a notebook that opens has late, has a widget's comm; whether it has. */
export async function arrived(
  find: () => CommKernel | undefined,
  id: string,
  wanted: () => boolean,
  times = { byItself: BY_ITSELF, patience: PATIENCE, pause: PAUSE },
): Promise<boolean> {
  const began = Date.now();
  let asked = began + times.byItself;
  let wait = 0;
  while (Date.now() - began < (find() ? times.patience : times.patience / 3)) {
    // The notebook's manager hears of a comm in the same turn as this.
    await pause(wait);
    wait = times.pause;
    const kernel = find();
    if (!wanted()) {
      return false;
    }
    if (kernel?.hasComm?.(id)) {
      return true;
    }
    if (kernel && Date.now() >= asked) {
      asked = Date.now() + 2 * times.byItself;
      await bring(kernel, id).catch(() => undefined);
    }
  }
  return false;
}

/**
 * Ask the kernel what a widget is, and open its comm here. A page that was opened while a cell runs was not told, and
 * what its manager asks for waits until the cell has ended.
 */
async function bring(kernel: CommKernel, id: string): Promise<void> {
  if (!kernel._handleCommOpen) {
    return;
  }
  let message: { header?: object; buffers?: unknown[] } = {};
  const answer = await ask(kernel, REQUEST, { widgets: [id] }, PATIENCE, (reply) => {
    message = reply as typeof message;
  });
  let place = 0;
  for (const one of readOpenings(answer)) {
    const buffers = message.buffers?.slice(place, place + one.buffers) ?? [];
    place += one.buffers;
    if (!kernel.hasComm?.(one.content.comm_id)) {
      const header = { ...message.header, msg_type: "comm_open" };
      await kernel._handleCommOpen({
        header,
        parent_header: {},
        channel: "iopub",
        content: one.content,
        metadata: one.metadata,
        buffers,
      });
      sayAtOnce(kernel, one.content.comm_id);
    }
  }
}

/**
 * Have what this page says to a widget go by the control channel. Pages send to a busy kernel's subshell, but for those
 * that were opened since it is busy: they do not know yet that it has any.
 */
function sayAtOnce(kernel: CommKernel, id: string): void {
  const comm = kernel._comms?.get(id);
  if (comm) {
    comm.send = (data, _metadata, buffers = []) =>
      kernel.sendControlMessage(request(kernel, REQUEST, { comm_id: id, data }, buffers), true, true);
  }
}
