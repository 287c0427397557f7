/** A page that is opened while a cell runs: the run's output is put back where the notebook was not saved with it. */

import { type Kernel, listViews, open, type ViewFacts } from "./control";
import { MIME } from "./model";

/** What is used of a notebook's panel, as JupyterLab and Notebook 7 have it. */
interface Panel {
  isDisposed: boolean;
  context: { ready: Promise<void> };
  sessionContext: { session: { kernel: (Kernel & { connectionStatus: string }) | null } | null };
  content: { widgets: readonly { model: CellModel }[] };
}
interface CellModel {
  id: string;
  type: string;
  sharedModel: { getSource(): string };
  outputs?: Outputs;
}
interface Outputs {
  length: number;
  get(index: number): { data: Record<string, unknown> };
  add(output: object): number;
}

export function isNotebook(widget: unknown): widget is Panel {
  const found = widget as Partial<Panel> | null;
  return !!found?.sessionContext && !!found.context && Array.isArray(found.content?.widgets);
}

const STEP = 100;
const CONNECTED = 60_000;
// A kernel that does not say within this time that it is idle is taken for busy.
const IDLE = 1500;

/** Look once after a notebook was opened. */
export async function restore(panel: Panel): Promise<void> {
  await panel.context.ready;
  const kernel = await busyKernel(panel);
  const cells = panel.content.widgets.map((cell) => cell.model).filter((cell) => cell.type === "code");
  // Other kernels are not asked what they do not know.
  if (!kernel || panel.isDisposed || !cells.some((cell) => cell.sharedModel.getSource().includes("%%sky"))) {
    return;
  }
  for (const view of await listViews(kernel)) {
    const cell = cells.find((one) => one.id === view.cell);
    if (cell?.outputs && !shows(cell.outputs, view)) {
      const found = await open(kernel, view.view);
      const data = found.bundle ?? { [MIME]: { ...found.run, ranks: [], items: [], order: [] } };
      if (found.bundle || found.run) {
        cell.outputs.add({ output_type: "display_data", data, metadata: {} });
      }
    }
  }
}

/** The kernel of a notebook once there is a connection, if it is busy: one that is idle has nothing to show. */
async function busyKernel(panel: Panel): Promise<Kernel | undefined> {
  // The session is not said to be ready before the kernel has answered, which a busy one does not.
  const found = () => panel.sessionContext.session?.kernel;
  for (let waited = 0; waited < CONNECTED && !panel.isDisposed; waited += STEP) {
    if (found()?.connectionStatus === "connected") {
      break;
    }
    await pause(STEP);
  }
  for (let waited = 0; waited < IDLE; waited += STEP) {
    const status = found()?.status;
    if (status === "busy") {
      break;
    }
    if (status !== "unknown") {
      return undefined;
    }
    await pause(STEP);
  }
  return found() ?? undefined;
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function shows(outputs: Outputs, view: ViewFacts): boolean {
  for (let index = 0; index < outputs.length; index++) {
    const run = outputs.get(index).data?.[MIME] as { view?: string } | undefined;
    if (run?.view === view.view) {
      return true;
    }
  }
  // A cell that has other outputs of a run that is over was run again, or its output was cleared.
  return !view.live && outputs.length > 0;
}
