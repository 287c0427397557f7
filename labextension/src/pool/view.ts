/** The pool panel: a header with what can be done, what runs, the nodes, and what the start came through. */

import { isDark } from "../run/style";
import { type Reply, PoolActions } from "./actions";
import { fill, make, mark, say } from "./dom";
import type { PoolModel } from "./model";
import { NamesTable } from "./names-table";
import { NodesTable } from "./node-table";
import { readNames } from "./schema";
import { StartLog } from "./start-phases";
import { poolFacts, runText } from "./status-texts";

// What a cell shows is as new as that; in seconds.
const FRESH = 5;

/** How what is shown came to be known. */
export interface Known {
  /** A kernel tells it now; otherwise it is what a notebook kept, or what was last heard. */
  live: boolean;
  /** It has been asked, and has not answered yet. */
  asking?: boolean;
  /** The kernel has no such pool any more. */
  gone?: boolean;
  /** A notebook kept it, and no kernel has told of it since. */
  kept?: boolean;
  problem?: string;
  /** When it was so, in seconds since 1970. */
  at: number;
}

export class PoolPanel {
  readonly node = make("section", "sky-live", { "data-lm-suppress-shortcuts": "true", role: "group" });
  readonly deeds: PoolActions;
  private readonly dot = make("span", "sky-live-dot", { "aria-hidden": "true" });
  private readonly title = make("span", "sky-live-title");
  private readonly facts = make("span", "sky-live-facts");
  private readonly note = make("p", "sky-live-note");
  private readonly notes = make("ul", "sky-live-notes");
  private readonly runs = make("ul", "sky-live-runs", { "aria-label": "What runs" });
  private readonly nodes = new NodesTable((node) => this.deeds.askRemove(node));
  private readonly start = new StartLog();
  private readonly names: NamesTable;

  /** `act` asks the pool's kernel to do something, `ask` for its names; `soon` is called when something has changed. */
  constructor(
    act: (content: Record<string, unknown>) => Promise<Reply>,
    soon: () => void,
    ask: (content: Record<string, unknown>) => Promise<unknown> = act,
  ) {
    this.deeds = new PoolActions(act, soon);
    this.names = new NamesTable(async (pool) => readNames(await ask({ action: "names", pool })));
    const head = make("div", "sky-live-head");
    head.append(this.dot, this.title, this.facts, this.deeds.bar);
    const { asked, told } = this.deeds;
    this.node.append(head, asked, told, this.note, this.notes, this.runs, this.nodes.node, this.names.node, this.start.node);
    // What is typed here is not for the notebook.
    this.node.addEventListener("keydown", (event) => event.stopPropagation());
  }

  /** Nothing is known of the pool. */
  wait(pool: string, why: string): void {
    mark(this.node, "aria-label", `Pool ${pool}`);
    say(this.title, `pool ${pool}`);
    say(this.note, why);
    this.note.hidden = false;
    for (const part of [this.deeds.bar, this.notes, this.runs, this.nodes.node, this.names.node, this.start.node]) {
      part.hidden = true;
    }
  }

  show(model: PoolModel, known: Known): void {
    const pool = model.facts;
    const live = known.live && !known.gone;
    mark(this.node, "data-dark", String(isDark(this.node.parentElement ?? this.node)));
    mark(this.node, "aria-label", `Pool ${pool.name}`);
    mark(this.node, "data-state", known.gone ? "ended" : pool.state);
    // Of what nobody tells now, nothing is said to be well.
    mark(this.dot, "data-state", !live && !isFresh(known) ? "ended" : pool.runs.length && pool.state === "ready" ? "busy" : pool.state);
    say(this.title, `pool ${pool.name}`);
    say(this.facts, poolFacts(pool).join(" · "));
    say(this.note, noteOf(known));
    this.note.hidden = !this.note.textContent;
    const notes = [
      ...Object.entries(pool.away).sort().map(([host, text]) => `${host}: ${text}`),
      ...Object.values(pool.apart).sort().map((text) => `${text}: its control connection goes through here, no collectives`),
    ];
    fill(this.notes, notes, () => make("li"), (node, text) => say(node, text));
    this.notes.hidden = !notes.length;
    fill(this.runs, pool.runs, () => make("li"), (node, run) => say(node, runText(run)));
    this.runs.hidden = !pool.runs.length;
    this.deeds.bar.hidden = !live;
    this.deeds.offer(pool, live);
    if (known.gone) {
      this.deeds.over();
    }
    // What each node is at while the pool starts stands with the phases.
    this.nodes.node.hidden = pool.state === "starting" && pool.phases.length > 0;
    this.nodes.show(model, live, known.at);
    this.names.show(pool.name, live && (pool.state === "ready" || pool.state === "resizing"));
    this.start.show(pool);
  }
}

/** What is to be said of where the facts are from. */
function noteOf(known: Known): string {
  if (isFresh(known)) {
    return "";
  }
  const then = `As it was at ${when(known.at)}:`;
  if (known.gone) {
    return `This pool has ended. ${then}`;
  }
  if (known.kept) {
    return `Saved at ${when(known.at)}${known.problem ? `; ${known.problem}` : ""}.`;
  }
  if (known.problem) {
    return `Nothing new is heard of it: ${known.problem}. ${then}`;
  }
  return known.live ? "" : then;
}

/** Whether the cell has shown it just now, so that the kernel's answer is about to come. */
function isFresh(known: Known): boolean {
  return !known.gone && !known.problem && !!known.asking && Date.now() / 1000 - known.at < FRESH;
}

/** Such as "2:31 PM", with the day where it is not today's. */
function when(seconds: number): string {
  const then = new Date(seconds * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString([], { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
}
