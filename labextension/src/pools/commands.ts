/** Commands for all that can be done to a pool: for the palette, menus and a person's own shortcuts. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { type ICommandPalette, InputDialog, Notification } from "@jupyterlab/apputils";

import type { Pool } from "./client";
import { candidates, type ListActions, nameOf } from "./view";
import type { Watcher } from "./watcher";

const CATEGORY = "Sky";
const ARGS = {
  args: { type: "object", properties: { pool: { type: "string", description: "The name or id of the pool" } } },
} as const;
const COMMANDS: [keyof ListActions, string, string][] = [
  ["interrupt", "Interrupt the Pool's Cell", "As %sky interrupt"],
  ["where", "Show Where Each Rank Is", "Each rank's stack, as %sky where"],
  ["logs", "Show the Pool's Last Output", "What each rank of the newest run printed last"],
  ["shell", "Open a Terminal on a Rank's Node…", "A terminal with the rank's variables and folder, as sky-jupyter shell"],
  ["files", "Browse the Files of the Pool's Ranks", "In the side panel"],
  ["restart", "Restart the Pool…", "New kernels on all ranks, as %sky restart"],
  ["attach", "Attach a Pool to This Notebook", "Insert the cell that takes a pool up that nobody manages"],
  ["down", "Shut Down the Pool…", "End a pool, as %sky down"],
  ["open", "Open the Pool's Notebook", "Open the notebook that manages a pool"],
];

/** Add a command for each action; it goes to the pool that is named, else to that of the notebook in front. */
export function addPoolCommands(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  watcher: Watcher,
  deeds: ListActions,
): void {
  for (const [deed, label, caption] of COMMANDS.filter(([deed]) => deeds[deed])) {
    const command = `sky-jupyter:${deed}`;
    app.commands.addCommand(command, {
      label,
      caption,
      describedBy: ARGS,
      execute: async (args) => {
        // A pool may have been started just now.
        await watcher.refresh().catch(() => undefined);
        const named = typeof args.pool === "string" ? args.pool : "";
        const found = candidates(watcher.pools, deed, kernelInFront(app), named);
        const pool = found.length > 1 ? await choose(found, label) : found[0];
        if (pool) {
          deeds[deed]?.(pool);
        } else if (!found.length) {
          Notification.info(named ? `Pool ${named}: this cannot be done to it now.` : "There is no pool that this can be done to now.", {
            autoClose: 4000,
          });
        }
      },
    });
    palette?.addItem({ command, category: CATEGORY });
  }
}

function kernelInFront(app: JupyterFrontEnd): string {
  const widget = app.shell.currentWidget as { sessionContext?: { session?: { kernel?: { id: string } | null } | null } } | null;
  return widget?.sessionContext?.session?.kernel?.id ?? "";
}

async function choose(pools: Pool[], title: string): Promise<Pool | undefined> {
  const items = pools.map((pool) => `${nameOf(pool, pools)} (${pool.manager?.path ?? pool.manager?.who ?? "detached"})`);
  const { value } = await InputDialog.getItem({ title, label: "Pool", items });
  return pools[items.indexOf(value ?? "")];
}
