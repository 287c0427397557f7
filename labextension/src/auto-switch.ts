// The switch of `%sky auto` in a notebook's toolbar, in JupyterLab and Notebook 7.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import { Switch } from "@jupyterlab/ui-components";

import { AutoState } from "./auto/state";
import { install } from "./page/dom";
import { reason } from "./run/dom";
import style from "./auto/style.css";
import type { Kernel } from "./run/kernel-requests";

// Left of the kernel's name.
const BEFORE = "spacer";
const NAME = "sky-auto";

/** What is used of a notebook's panel. */
interface Panel {
  readonly context: { readonly ready: Promise<void> };
  readonly content: { readonly widgets: readonly { readonly model: { readonly sharedModel: { getSource(): string } } }[] };
  readonly sessionContext: {
    readonly session: { readonly kernel: Kernel | null } | null;
    readonly kernelChanged: { connect(slot: () => void): boolean; disconnect(slot: () => void): boolean };
  };
  readonly toolbar: { insertBefore(at: string, name: string, widget: Switch): boolean; addItem(name: string, widget: Switch): boolean };
}

/** Put the switch into a notebook's toolbar; what it gives takes it away. */
function add(panel: Panel): { dispose(): void; readonly isDisposed: boolean } {
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
      state.turn(change.newValue).catch((error: unknown) => {
        widget.value = state.on;
        Notification.error(reason(error), { autoClose: false });
      });
    }
  });
  const follow = () => {
    const kernel = panel.sessionContext.session?.kernel ?? undefined;
    state.follow(kernel);
    // A notebook that has nothing to do with us has a kernel that is asked nothing.
    if (kernel && panel.content.widgets.some((cell) => cell.model.sharedModel.getSource().includes("%sky"))) {
      void state.ask();
    }
  };
  panel.sessionContext.kernelChanged.connect(follow);
  void panel.context.ready.then(follow);
  if (!panel.toolbar.insertBefore(BEFORE, NAME, widget)) {
    panel.toolbar.addItem(NAME, widget);
  }
  let isDisposed = false;
  return {
    get isDisposed() {
      return isDisposed;
    },
    dispose: () => {
      isDisposed = true;
      panel.sessionContext.kernelChanged.disconnect(follow);
      state.follow(undefined);
      widget.dispose();
    },
  };
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
