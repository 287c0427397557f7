/** Pools in JupyterLab's panel of what runs. */
import type { IRunningSessions } from "@jupyterlab/running";
import type { ISignal } from "@lumino/signaling";

import type { Pool } from "./client";
import { icon } from "./panel";
import { factsOf, nameOf, offered } from "./view";
import type { Watcher } from "./watcher";

/** What is done for a person who presses there; `down` asks first, `end` does not. */
export interface RunningActions {
  open(pool: Pool): void;
  show(): void;
  down(pool: Pool): void;
  end(pool: Pool): void;
}

/** The section of pools. */
export function poolsSection(watcher: Watcher, deeds: RunningActions): IRunningSessions.IManager {
  return {
    name: "Pools",
    supportsMultipleViews: false,
    running: () => watcher.pools.map((pool) => itemOf(pool, watcher, deeds)),
    shutdownAll: () => watcher.pools.filter((pool) => offered(pool).down).forEach((pool) => deeds.end(pool)),
    refreshRunning: () => void watcher.refresh(),
    runningChanged: watcher.changed as unknown as ISignal<object, object>,
    shutdownLabel: "Shut Down",
    shutdownAllLabel: "Shut Down All",
    shutdownAllConfirmationText: "Shut down all pools? What their ranks have in memory is lost.",
  } as IRunningSessions.IManager;
}

function itemOf(pool: Pool, watcher: Watcher, deeds: RunningActions): IRunningSessions.IRunningItem {
  const can = offered(pool);
  const facts = factsOf(pool, Date.now() / 1000);
  return {
    open: () => (can.open ? deeds.open(pool) : deeds.show()),
    ...(can.down ? { shutdown: () => deeds.down(pool) } : {}),
    icon: () => icon,
    label: () => nameOf(pool, watcher.pools),
    labelTitle: () => `${pool.name}: ${facts}, managed by ${pool.manager?.path ?? pool.manager?.who ?? "nobody"}`,
    detail: () => (pool.running.length ? "running" : pool.manager ? pool.state : "detached"),
  };
}
