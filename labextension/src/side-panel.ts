// The side panel: the pools of all kernels of this user, in JupyterLab and Notebook 7.
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Dialog, ICommandPalette, Notification, showDialog } from "@jupyterlab/apputils";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { LabIcon } from "@jupyterlab/ui-components";
import { Widget } from "@lumino/widgets";

import { install } from "./page/dom";
import { type Action, type Client, type Pool, ServerClient } from "./pools/client";
import iconText from "./pools/icon.svg";
import { logNode, whereNode } from "./pools/run-dialog";
import style from "./pools/style.css";
import { nameOf, PoolsView } from "./pools/view";
import { Watcher } from "./pools/watcher";

const ID = "sky-jupyter-pools";
const PLUGIN = "sky-jupyter:panel";
const CATEGORY = "Sky";
const SECONDS = 15;
// Ages are shown in minutes, and in seconds below one.
const TICK = 5000;

const icon = new LabIcon({ name: "sky-jupyter:pools", svgstr: iconText });

class Panel extends Widget {
  private readonly view: PoolsView;
  private timer: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly watcher: Watcher,
    view: PoolsView,
  ) {
    super({ node: view.node });
    this.view = view;
    this.id = ID;
    this.title.icon = icon;
    this.title.caption = "Pools";
    watcher.changed.connect(this.draw, this);
  }

  override dispose(): void {
    clearInterval(this.timer);
    this.watcher.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    void this.watcher.refresh();
    this.timer ??= setInterval(() => this.draw(), TICK);
  }

  protected override onAfterHide(): void {
    clearInterval(this.timer);
    this.timer = undefined;
  }

  private draw(): void {
    this.view.fail(this.watcher.problem);
    this.view.show(this.watcher.pools, Date.now() / 1000);
  }
}

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
  };
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
  optional: [ICommandPalette, ILayoutRestorer, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    settings: ISettingRegistry | null,
  ) => {
    const client = new ServerClient(app.serviceManager.serverSettings);
    const watcher = new Watcher(client, app.serviceManager.events?.stream ?? null, SECONDS);
    const refresh = () => void watcher.refresh();
    const panel = new Panel(watcher, new PoolsView(deeds(app, client, watcher)));
    install(document, "pools", style);
    app.shell.add(panel, "left", { rank: 350, type: "Sky Pools" });
    restorer?.add(panel, ID);
    addCommands(app, palette, panel, refresh);
    void settings?.load(PLUGIN).then((loaded) => {
      const follow = () => {
        watcher.seconds = loaded.composite.refresh as number;
      };
      loaded.changed.connect(follow);
      follow();
    });
  },
};

function addCommands(app: JupyterFrontEnd, palette: ICommandPalette | null, panel: Panel, refresh: () => void): void {
  app.commands.addCommand("sky-jupyter:show-pools", {
    label: "Show Pools",
    caption: "Show the pools of all notebooks",
    describedBy: { args: { type: "object", properties: {} } },
    execute: () => app.shell.activateById(panel.id),
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
