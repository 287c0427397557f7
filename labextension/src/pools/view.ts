// The list of pools as elements of the page. A row is changed in place, so that focus and selection stay.
import { count, duration } from "../format";
import { costText } from "../page/cost";
import { make, mark, say } from "../page/dom";
import { type IconName, iconButton } from "../page/icons";
import type { Pool } from "./client";

/** What a person may ask for. */
export interface ListActions {
  open(pool: Pool): void;
  logs(pool: Pool): void;
  files(pool: Pool): void;
  where(pool: Pool): void;
  interrupt(pool: Pool): void;
  restart(pool: Pool): void;
  attach(pool: Pool): void;
  down(pool: Pool): void;
  /** Absent where the server has no terminals. */
  shell?(pool: Pool): void;
}

const NONE = "No pools yet. Put %%sky --nodes 2 at the top of a cell to start one.";
const NOBODY = "Detached: no notebook is using it";

/** Whether a pool has lost its notebook, so that it is only here that somebody sees it. */
export function isLost(pool: Pool): boolean {
  return pool.manager === null;
}

/** What a magic calls a pool: its name, or its id where another one has the same name. */
export function nameOf(pool: Pool, pools: Pool[]): string {
  return pools.some((other) => other.name === pool.name && other.id !== pool.id) ? pool.id : pool.name;
}

/** What a person may ask for of a pool as it is. */
export function offered(pool: Pool): Record<keyof ListActions, boolean> {
  const [lost, ours] = [isLost(pool), Boolean(pool.manager?.kernel)];
  const runs = ours && pool.running.length > 0;
  return {
    open: Boolean(pool.manager?.path),
    logs: ours || (lost && pool.provider === "local" && pool.here),
    files: ours,
    where: runs,
    interrupt: runs,
    restart: ours,
    attach: lost && pool.here,
    down: (ours || lost) && pool.here,
    shell: (ours || lost) && pool.here,
  };
}

/** The pools that an action may be meant for: the one that is named, else the kernel's own, else all that it can be done to. */
export function candidates(pools: Pool[], deed: keyof ListActions, kernel: string, named = ""): Pool[] {
  const can = pools.filter((pool) => offered(pool)[deed]);
  if (named) {
    return can.filter((pool) => pool.id === named || pool.name === named);
  }
  const own = can.filter((pool) => kernel && pool.manager?.kernel === kernel);
  return own.length ? own : can;
}

/** What a pool is and how long it has been there, in a line. */
export function factsOf(pool: Pool, now: number): string {
  const cost = pool.cost === null ? "" : ` · ${costText(pool.cost, now - pool.cost.at)}`;
  return `${count(pool.nodes, `${pool.provider} node`)} · ${duration(now - pool.began)}${cost}`;
}

export class PoolsView {
  readonly node = make("section", "sky-pools");
  private readonly rows = new Map<string, Row>();
  private readonly list = make("ul", "sky-pools-list");
  private readonly empty = make("p", "sky-pools-empty");
  private readonly problem = make("p", "sky-pools-problem");
  private readonly told = make("p", "sky-pools-told");

  /** `name` is what these pools are called, `none` what is said where there are none. */
  constructor(
    private readonly deeds: ListActions,
    name = "Pools",
    private readonly none = NONE,
  ) {
    mark(this.node, "aria-label", name);
    mark(this.list, "aria-label", name);
    mark(this.problem, "role", "alert");
    // Read out when it changes, seen by nobody.
    mark(this.told, "role", "status");
    this.node.append(this.problem, this.list, this.empty, this.told);
    this.show([], 0);
    this.fail("");
  }

  /** Show these of all pools, as they are at `now`, in seconds since 1970. */
  show(pools: Pool[], now: number, all = pools): void {
    const ids = new Set(pools.map((pool) => pool.id));
    for (const [id, row] of this.rows) {
      if (!ids.has(id)) {
        this.leave(row);
        this.rows.delete(id);
      }
    }
    pools.forEach((pool, place) => {
      const row = this.rows.get(pool.id) ?? new Row(this.deeds);
      this.rows.set(pool.id, row);
      row.show(pool, now, nameOf(pool, all) === pool.id);
      if (this.list.children[place] !== row.node) {
        this.list.insertBefore(row.node, this.list.children[place] ?? null);
      }
    });
    this.empty.textContent = pools.length ? "" : all.length && this.none === NONE ? "No notebook or program uses a pool." : this.none;
    this.empty.hidden = pools.length > 0;
    this.list.hidden = pools.length === 0;
    const lost = pools.filter(isLost).length;
    const text = `${count(pools.length, "pool")}${lost ? `, ${lost} detached` : ""}`;
    if (this.told.textContent !== text) {
      this.told.textContent = text;
    }
  }

  /** Say why the list may not be up to date; nothing when it is. */
  fail(why: string): void {
    this.problem.textContent = why;
    this.problem.hidden = !why;
  }

  /** Take a row away, and give the focus that was in it to the panel. */
  private leave(row: Row): void {
    const focused = row.node.contains(document.activeElement);
    row.node.remove();
    if (focused) {
      this.node.tabIndex = -1;
      this.node.focus();
    }
  }
}

class Row {
  readonly node = make("li", "sky-pool");
  private readonly name = make("h3", "sky-pool-name");
  private readonly state = make("span", "sky-pool-state");
  private readonly twin = make("span", "sky-pool-twin");
  private readonly facts = make("p", "sky-pool-facts");
  private readonly manager = make("p", "sky-pool-manager");
  private readonly runs = make("p", "sky-pool-runs");
  private readonly bar = make("div", "sky-pool-deeds");
  private readonly buttons: Record<keyof ListActions, HTMLButtonElement>;
  private pool!: Pool;

  constructor(private readonly deeds: ListActions) {
    const button = (deed: keyof ListActions, icon: IconName, text: string) => {
      const made = iconButton(icon, text, () => deeds[deed]?.(this.pool));
      made.classList.add("sky-pool-deed");
      return made;
    };
    this.buttons = {
      open: button("open", "open", "Open notebook"),
      logs: button("logs", "logs", "Logs"),
      files: button("files", "folder", "Files"),
      where: button("where", "where", "Where"),
      interrupt: button("interrupt", "stop", "Interrupt"),
      shell: button("shell", "terminal", "Terminal"),
      restart: button("restart", "restart", "Restart"),
      attach: button("attach", "link", "Attach here"),
      down: button("down", "down", "Shut down"),
    };
    this.buttons.down.classList.add("sky-pool-ends");
    const head = make("div", "sky-pool-head");
    mark(this.bar, "role", "group");
    this.bar.append(...Object.values(this.buttons));
    head.append(make("span", "sky-pool-dot", { "aria-hidden": "true" }), this.name, this.twin, this.state, this.bar);
    this.node.append(head, this.facts, this.manager, this.runs);
  }

  /** `twin` says that another pool has the same name. */
  show(pool: Pool, now: number, twin: boolean): void {
    this.pool = pool;
    const lost = isLost(pool);
    this.node.dataset.pool = pool.id;
    this.node.dataset.state = lost ? "lost" : pool.running.length ? "running" : pool.state;
    say(this.name, pool.name);
    say(this.twin, twin ? pool.id : "");
    this.twin.hidden = !twin;
    say(this.state, pool.running.length ? "running" : pool.state);
    say(this.facts, factsOf(pool, now));
    say(this.manager, lost ? NOBODY : `Managed by ${pool.manager?.path || pool.manager?.who}`);
    const told = (run: Pool["running"][number]) =>
      [run.title || "a cell", duration(now - run.began), run.notebook?.replace(/^.*\//, "")].filter(Boolean);
    say(this.runs, pool.running.map((run) => told(run).join(" · ")).join("\n"));
    this.runs.hidden = !pool.running.length;
    this.offer(pool);
  }

  private offer(pool: Pool): void {
    const shown = offered(pool);
    mark(this.bar, "aria-label", `Pool ${pool.name}`);
    for (const [deed, button] of Object.entries(this.buttons) as [keyof ListActions, HTMLButtonElement][]) {
      // Of several buttons with the same words, each says whose it is.
      mark(button, "aria-label", `${button.textContent}: pool ${pool.name}`);
      button.hidden = !shown[deed] || !this.deeds[deed];
    }
  }
}
