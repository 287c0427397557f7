// A notification when a run that took long has ended or failed; the browser's own too, where it may and nobody looks.
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, Notification as Notice } from "@jupyterlab/apputils";
import { ISettingRegistry } from "@jupyterlab/settingregistry";

import { isNotebook } from "./run/restore";
import { type Heard, RUN_ENDED, readRunEnd, textOf } from "./run/run-end";


const PLUGIN = "sky-jupyter:run-ends";
const ALLOW = "sky-jupyter:allow-notifications";
const SHOWN = 12_000;

/** What is used of a notebook's session. */
interface Session {
  iopubMessage: { connect(slot: (sender: unknown, message: Message) => void): boolean };
}
interface Message {
  header: { msg_type: string };
  content: unknown;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: "Notifies of the end of runs that took more than a minute.",
  autoStart: true,
  optional: [ICommandPalette, ISettingRegistry],
  activate: (app: JupyterFrontEnd, palette: ICommandPalette | null, settings: ISettingRegistry | null) => {
    const notebooks = new WeakSet<object>();
    const told = new Set<string>();
    let wanted = true;
    const hear = (panel: string, message: Message) => {
      if (message.header.msg_type !== RUN_ENDED || !wanted) {
        return;
      }
      const run = readRunEnd(message.content);
      // Two views of a notebook hear the same.
      if (run && !told.has(run.run)) {
        told.add(run.run);
        notify(run, () => app.shell.activateById(panel));
      }
    };
    const look = () => {
      for (const widget of app.shell.widgets("main")) {
        if (isNotebook(widget) && !notebooks.has(widget)) {
          notebooks.add(widget);
          const session = widget.sessionContext as unknown as Session;
          session.iopubMessage.connect((_, message) => hear(widget.id, message));
        }
      }
    };
    app.restored.then(look, look);
    app.shell.currentChanged?.connect(look);
    addCommand(app, palette);
    void settings?.load(PLUGIN).then((loaded) => {
      const follow = () => {
        wanted = loaded.composite.notify !== false;
      };
      loaded.changed.connect(follow);
      follow();
    });
  },
};

function notify(run: Heard, show: () => void): void {
  const actions = [{ label: "Show", caption: "Show the notebook", callback: show }];
  const text = textOf(run);
  if (run.state === "ok") {
    Notice.success(text, { autoClose: SHOWN, actions });
  } else {
    Notice.error(text, { autoClose: false, actions });
  }
  const may = typeof Notification !== "undefined" && Notification.permission === "granted";
  if (may && (document.hidden || !document.hasFocus())) {
    const made = new Notification("Sky", { body: text, tag: `sky-${run.run}` });
    made.addEventListener("click", () => {
      window.focus();
      show();
      made.close();
    });
  }
}

/** Browsers ask only where a person has pressed something. */
function addCommand(app: JupyterFrontEnd, palette: ICommandPalette | null): void {
  app.commands.addCommand(ALLOW, {
    label: "Allow Browser Notifications of Ended Runs",
    caption: "Ask the browser to notify of long runs while you look elsewhere",
    describedBy: { args: { type: "object", properties: {} } },
    isEnabled: () => typeof Notification !== "undefined" && Notification.permission !== "granted",
    execute: async () => {
      if ((await Notification.requestPermission()) === "denied") {
        Notice.warning("This browser does not allow notifications of this page; its settings for the site do.");
      }
    },
  });
  palette?.addItem({ command: ALLOW, category: "Sky" });
}

export default plugin;
