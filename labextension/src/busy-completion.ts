// Tab and Shift-Tab while a cell runs on the pool, in JupyterLab and Notebook 7.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";

import { answerWhileBusy, type TypingKernel } from "./completion/typing-requests";
import type { Panel } from "./toolbar-item";

/** Have a notebook's kernels answer while they are busy; what it gives ends that. */
function add(panel: Panel): { dispose(): void; readonly isDisposed: boolean } {
  let restore = () => {};
  const concerns = () =>
    panel.content.widgets.some((cell) => cell.model.sharedModel.getSource().includes("%sky"));
  const follow = () => {
    restore();
    const kernel = panel.sessionContext.session?.kernel;
    restore = kernel ? answerWhileBusy(kernel as TypingKernel, concerns) : () => {};
  };
  panel.sessionContext.kernelChanged.connect(follow);
  void panel.context.ready.then(follow);
  let isDisposed = false;
  return {
    get isDisposed() {
      return isDisposed;
    },
    dispose: () => {
      isDisposed = true;
      panel.sessionContext.kernelChanged.disconnect(follow);
      restore();
    },
  };
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "sky-jupyter:completion",
  description: "Completes and explains names of a pool's cells while one of them runs.",
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    app.docRegistry.addWidgetExtension("Notebook", { createNew: (panel) => add(panel as unknown as Panel) });
  },
};

export default plugin;
