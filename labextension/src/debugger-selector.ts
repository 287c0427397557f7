// The selector of the debugged rank in a notebook's toolbar, in JupyterLab and Notebook 7.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";

import { DebuggerState } from "./debugger/debugged-rank";
import { install, make, mark } from "./page/dom";
import { reason } from "./run/dom";
import style from "./debugger/style.css";
import { addItem, type Panel } from "./toolbar-item";

/** Put the selector into a notebook's toolbar; what it gives takes it away. */
function add(panel: Panel): ReturnType<typeof addItem> {
  const widget = new Widget();
  widget.addClass("sky-debugger");
  widget.hide();
  const select = make("select");
  widget.node.append(select);
  const show = () => {
    const { shown, entries, selected, caption } = state.texts;
    widget.setHidden(!shown);
    if (entries.length !== select.options.length) {
      select.replaceChildren(...entries.map(option));
    }
    mark(select, "title", caption);
    mark(select, "aria-label", caption);
    select.selectedIndex = selected;
  };
  const state = new DebuggerState(show);
  select.addEventListener("change", () => {
    select.disabled = true;
    state
      .select(select.selectedIndex)
      .catch((error: unknown) => {
        show();
        Notification.error(reason(error), { autoClose: false });
      })
      .finally(() => {
        select.disabled = false;
      });
  });
  return addItem(panel, "sky-debugger", widget, state);
}

function option(text: string): HTMLOptionElement {
  const node = make("option");
  node.textContent = text;
  return node;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "sky-jupyter:debugger",
  description: "Shows in a notebook's toolbar which rank the debugger debugs, and changes that.",
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    install(document, "debugger", style);
    app.docRegistry.addWidgetExtension("Notebook", { createNew: (panel) => add(panel as unknown as Panel) });
  },
};

export default plugin;
