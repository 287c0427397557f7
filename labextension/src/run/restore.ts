/** A page that is opened while a cell runs, or after it: the run's output is put back where the notebook lacks it. */

import { type Kernel, listViews, open } from "./kernel-requests";
import { MIME, type ViewFacts } from "./schema";

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
  clear(): void;
}

export function isNotebook(widget: unknown): widget is Panel {
  const found = widget as Partial<Panel> | null;
  return !!found?.sessionContext && !!found.context && Array.isArray(found.content?.widgets);
}

const STEP = 100;
const CONNECTED = 60_000;

/** Look once after a notebook was opened. */
export async function restore(panel: Panel): Promise<void> {
  await panel.context.ready;
  const kernel = await connected(panel);
  const cells = panel.content.widgets.map((cell) => cell.model).filter((cell) => cell.type === "code");
  // Other kernels are not asked what they do not know.
  if (!kernel || panel.isDisposed || !cells.some((cell) => cell.sharedModel.getSource().includes("%sky"))) {
    return;
  }
  const views = await listViews(kernel);
  for (const view of views) {
    const cell = cells.find((one) => one.id === view.cell);
    if (!cell?.outputs || shown(cell.outputs).includes(view.view)) {
      continue;
    }
    const found = await open(kernel, view.view);
    const data = found.bundle ?? { [MIME]: { ...found.run, ranks: [], items: [], order: [] } };
    if (found.bundle || found.run) {
      if (isOld(cell.outputs, views)) {
        cell.outputs.clear();
      }
      cell.outputs.add({ output_type: "display_data", data, metadata: {} });
    }
  }
}

/** The kernel of a notebook once there is a connection: one that is busy does not say more for a while. */
async function connected(panel: Panel): Promise<Kernel | undefined> {
  const found = () => panel.sessionContext.session?.kernel;
  for (let waited = 0; waited < CONNECTED && !panel.isDisposed; waited += STEP) {
    if (found()?.connectionStatus === "connected") {
      break;
    }
    await pause(STEP);
  }
  return found() ?? undefined;
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** The runs' views that a cell shows. */
function shown(outputs: Outputs): string[] {
  const found: string[] = [];
  for (let index = 0; index < outputs.length; index++) {
    const run = outputs.get(index).data?.[MIME] as { view?: string } | undefined;
    found.push(...(run?.view ? [run.view] : []));
  }
  return found;
}

/** Whether a cell was saved with a run that it made before the one that the kernel knows. */
function isOld(outputs: Outputs, views: ViewFacts[]): boolean {
  const held = shown(outputs);
  return held.length > 0 && !held.some((view) => views.some((one) => one.view === view));
}
