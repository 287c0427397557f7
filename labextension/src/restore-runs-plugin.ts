// A notebook that is opened while one of its cells runs on a pool, or after it, shows that run.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";

import { isNotebook, restore } from "./run/restore";

const plugin: JupyterFrontEndPlugin<void> = {
  id: "sky-jupyter:restore-runs",
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    const seen = new WeakSet<object>();
    const look = () => {
      for (const widget of app.shell.widgets("main")) {
        if (isNotebook(widget) && !seen.has(widget)) {
          seen.add(widget);
          restore(widget).catch(() => undefined);
        }
      }
    };
    app.restored.then(look, look);
    app.shell.currentChanged?.connect(look);
  },
};

export default plugin;
