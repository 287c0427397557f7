// The side panel: the pools of all kernels of this user, in JupyterLab and Notebook 7.
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Dialog, ICommandPalette, InputDialog, MainAreaWidget, Notification, showDialog } from "@jupyterlab/apputils";
import { IRunningSessionManagers } from "@jupyterlab/running";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { Widget } from "@lumino/widgets";

import { install, picture } from "./page/dom";
import { installIcons } from "./page/icons";
import { type Action, type Client, type Pool, ServerClient } from "./pools/client";
import { addPoolCommands } from "./pools/commands";
import { FileViewer } from "./pools/file-viewer";
import { FilesView, type OpenedFile } from "./pools/files-view";
import { icon, PoolsPanel } from "./pools/panel";
import { logNode, whereNode } from "./pools/run-dialog";
import { poolsSection } from "./pools/running-panel";
import style from "./pools/style.css";
import { nameOf } from "./pools/view";
import { Watcher } from "./pools/watcher";
import { OPEN, type Opened } from "./run/item-box";

const PLUGIN = "sky-jupyter:panel";
const CATEGORY = "Sky";
const SECONDS = 15;
/** The tabs of ranks' files. */
const fileTabs: Widget[] = [];
let tabs = 0;

/** What the buttons do. */
function deeds(app: JupyterFrontEnd, client: Client, watcher: Watcher) {
  const attempt = async (work: Promise<string | undefined>) => {
    try {
      const said = await work;
      if (said) {
        Notification.info(said, { autoClose: 4000 });
      }
    } catch (error) {
      Notification.error(error instanceof Error ? error.message : String(error), { autoClose: false });
    }
    void watcher.refresh();
  };
  const act = async (pool: Pool, action: Action) => (await client.act(pool.id, action)).message;
  const surely = async (pool: Pool, action: "restart" | "down") => {
    if (await sure(pool, action)) {
      await attempt(act(pool, action));
    }
  };
  return {
    open: (pool: Pool) => void app.commands.execute("docmanager:open", { path: pool.manager?.path }),
    logs: (pool: Pool) => void attempt(showLog(client, pool)),
    where: (pool: Pool) => void attempt(showWhere(client, pool)),
    interrupt: (pool: Pool) => void attempt(act(pool, "interrupt")),
    restart: (pool: Pool) => void surely(pool, "restart"),
    attach: (pool: Pool) => void attempt(attach(app, nameOf(pool, watcher.pools))),
    down: (pool: Pool) => void surely(pool, "down"),
    ...(app.serviceManager.terminals.isAvailable() && {
      shell: (pool: Pool) => void attempt(openTerminal(app, client, pool)),
    }),
    /** Without a question. */
    end: (pool: Pool) => void attempt(act(pool, "down")),
  };
}

/** Open a tab with a terminal on the node of a rank, which is asked for. */
async function openTerminal(app: JupyterFrontEnd, client: Client, pool: Pool): Promise<string> {
  const asked = { title: `A terminal on a node of pool ${pool.name}`, label: "Rank", value: 0, okLabel: "Open" };
  const { value, button } = await InputDialog.getNumber(asked);
  if (button.accept && value !== null) {
    await app.commands.execute("terminal:open", { name: await client.terminal(pool.id, value) });
  }
  return "";
}

async function showLog(client: Client, pool: Pool): Promise<string> {
  const node = logNode(await client.log(pool.id));
  showText(`Pool ${pool.name}`, node);
  node.scrollTop = node.scrollHeight;
  return "";
}

async function showWhere(client: Client, pool: Pool): Promise<string> {
  const { text } = await client.act(pool.id, "where");
  showText(`Pool ${pool.name}: where each rank is`, whereNode(text ?? ""));
  return "";
}

function showText(title: string, node: HTMLElement): void {
  void showDialog({ title, body: new Widget({ node }), buttons: [Dialog.okButton({ label: "Close" })] });
}

async function sure(pool: Pool, action: "restart" | "down"): Promise<boolean> {
  const lost = pool.running.length ? "The cell that runs there ends, and what" : "What";
  const [title, label] = action === "down" ? ["Shut down", "Shut Down"] : ["Restart", "Restart"];
  const result = await showDialog({
    title: `${title} pool ${pool.name}?`,
    body: `${lost} its ranks have in memory is lost.`,
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })],
    defaultButton: 0,
  });
  return result.button.accept;
}

/** Insert the cell that takes the pool up, into the notebook that is looked at; to run it is up to the person. */
async function attach(app: JupyterFrontEnd, name: string): Promise<string> {
  const insert = "notebook:insert-cell-below";
  if (!app.commands.hasCommand(insert) || !app.commands.isEnabled(insert)) {
    throw new Error("open the notebook that shall manage the pool, and try again");
  }
  await app.commands.execute(insert);
  await app.commands.execute("notebook:replace-selection", { text: `%sky attach ${name}` });
  return "";
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: "Lists the pools of all kernels, and ends those that nobody manages.",
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, ISettingRegistry, IRunningSessionManagers],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    settings: ISettingRegistry | null,
    managers: IRunningSessionManagers | null,
  ) => {
    const client = new ServerClient(app.serviceManager.serverSettings);
    const watcher = new Watcher(client, app.serviceManager.events?.stream ?? null, SECONDS);
    const files = new FilesView(client, (file) => openFile(app, file), tellOfFetch);
    const actions = {
      ...deeds(app, client, watcher),
      files: (pool: Pool) => {
        app.shell.activateById(panel.id);
        panel.browse(pool);
      },
    };
    const panel = new PoolsPanel(watcher, actions, files);
    installIcons(document);
    install(document, "pools", style);
    app.shell.add(panel, "left", { rank: 350, type: "Sky Pools" });
    restorer?.add(panel, panel.id);
    const show = () => app.shell.activateById(panel.id);
    managers?.add(poolsSection(watcher, { ...actions, show }));
    addCommands(app, palette, show, () => void watcher.refresh());
    addPoolCommands(app, palette, watcher, actions);
    document.addEventListener(OPEN, (event) => openPicture(app, event as CustomEvent<Opened>));
    void settings?.load(PLUGIN).then((loaded) => {
      const follow = () => {
        watcher.seconds = loaded.composite.refresh as number;
      };
      loaded.changed.connect(follow);
      follow();
    });
  },
};

/** Show a picture of a run in a tab of its own. */
function openPicture(app: JupyterFrontEnd, event: CustomEvent<Opened>): void {
  event.preventDefault();
  const { kind, data, title } = event.detail;
  const content = new Widget();
  content.addClass("sky-opened");
  content.node.append(picture(kind, data, title));
  showTab(app, content, title);
}

/** Show a rank's file in a tab of its own; it is only read. */
function openFile(app: JupyterFrontEnd, file: OpenedFile): void {
  const viewer = new FileViewer(file);
  const content = new Widget({ node: viewer.node });
  content.addClass("sky-opened");
  // Beside the files that are open: each in a part of its own would leave no room.
  const beside = fileTabs.find((tab) => tab.isAttached && !tab.isDisposed);
  const tab = showTab(app, content, file.title, beside);
  fileTabs.push(tab);
  tab.disposed.connect(() => fileTabs.splice(fileTabs.indexOf(tab), 1));
  void viewer.show();
}

function tellOfFetch(message: string, isError: boolean): void {
  if (isError) {
    Notification.error(message, { autoClose: false });
  } else {
    Notification.info(message, { autoClose: 4000 });
  }
}

function showTab(app: JupyterFrontEnd, content: Widget, title: string, beside?: Widget): Widget {
  const tab = new MainAreaWidget({ content });
  tab.id = `sky-opened-${++tabs}`;
  tab.title.label = title;
  tab.title.icon = icon;
  app.shell.add(tab, "main", beside ? { mode: "tab-after", ref: beside.id } : { mode: "split-right" });
  app.shell.activateById(tab.id);
  return tab;
}

function addCommands(app: JupyterFrontEnd, palette: ICommandPalette | null, show: () => void, refresh: () => void): void {
  app.commands.addCommand("sky-jupyter:show-pools", {
    label: "Show Pools",
    caption: "Show the pools of all notebooks",
    describedBy: { args: { type: "object", properties: {} } },
    execute: show,
  });
  app.commands.addCommand("sky-jupyter:refresh-pools", {
    label: "Refresh Pools",
    caption: "Ask the server for the pools now",
    describedBy: { args: { type: "object", properties: {} } },
    execute: refresh,
  });
  for (const command of ["sky-jupyter:show-pools", "sky-jupyter:refresh-pools"]) {
    palette?.addItem({ command, category: CATEGORY });
  }
}

export default plugin;
