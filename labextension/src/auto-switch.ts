// The switch of `%sky auto` in a notebook's toolbar, in JupyterLab and Notebook 7.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import { Switch } from "@jupyterlab/ui-components";

import { AutoState } from "./auto/auto-state";
import { install } from "./page/dom";
import { reason } from "./run/dom";
import style from "./auto/style.css";
import { addItem, type Panel } from "./toolbar-item";

/** Put the switch into a notebook's toolbar; what it gives takes it away. */
function add(panel: Panel): ReturnType<typeof addItem> {
  const widget = new Switch();
  widget.addClass("sky-auto");
  widget.hide();
  const state = new AutoState(() => {
    const { shown, label, caption } = state.texts;
    widget.setHidden(!shown);
    widget.label = label;
    widget.caption = caption;
    widget.toggleClass("sky-auto-gone", state.on && !state.live);
    widget.value = state.on;
  });
  widget.valueChanged.connect((_, change) => {
    if (change.newValue !== state.on) {
      // It shows what the kernel does, and changes with that: a cell that is run before its answer runs as shown.
      widget.value = state.on;
      state.turn(change.newValue).catch((error: unknown) => Notification.error(reason(error), { autoClose: false }));
    }
  });
  return addItem(panel, "sky-auto", widget, state);
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "sky-jupyter:auto",
  description: "Shows in a notebook's toolbar whether its cells run on a pool, and switches that.",
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    install(document, "auto", style);
    app.docRegistry.addWidgetExtension("Notebook", { createNew: (panel) => add(panel as unknown as Panel) });
  },
};

export default plugin;
