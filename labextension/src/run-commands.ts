// Commands for the buttons of a run's view: for the palette, and for a person's own shortcuts.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";

import { buttonOf, TOOLS } from "./run/view-commands";

const plugin: JupyterFrontEndPlugin<void> = {
  id: "sky-jupyter:run-commands",
  description: "Commands for what can be done in the view of a run.",
  autoStart: true,
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, palette: ICommandPalette | null) => {
    for (const [tool, label, caption] of TOOLS) {
      const command = `sky-jupyter:run-${tool}`;
      app.commands.addCommand(command, {
        label,
        caption: `${caption}, in the run of the active cell, else in the notebook's last one`,
        describedBy: { args: { type: "object", properties: {} } },
        execute: () => {
          const front = app.shell.currentWidget?.node;
          if (front) {
            buttonOf(front, tool)?.click();
          }
        },
      });
      palette?.addItem({ command, category: "Sky" });
    }
  },
};

export default plugin;
