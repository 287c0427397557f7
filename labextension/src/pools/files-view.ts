// The files of a rank as elements of the page: a folder's entries with size and date, and what is being fetched.
import { size } from "../format";
import { make, mark, say } from "../page/dom";
import { icon, iconButton } from "../page/icons";
import type { Client, Content, Entry, Folder, Pool, Transfer } from "./client";

/** What is opened of a file, for whoever has tabs. */
export interface OpenedFile {
  title: string;
  /** Reads it from a byte on; below 0, so many before its end. */
  read(from: number): Promise<Content>;
  /** Copies it to the notebook. */
  fetch(): void;
}

// Between two questions how far a fetch is, in milliseconds.
const POLL = 500;
// A fetch of which nothing is heard for so many questions is given up here; the kernel may go on with it.
const MOST_SILENT = 20;

export class FilesView {
  readonly node = make("section", "sky-files", { "aria-label": "Files" });
  private readonly rank = make("input", "sky-files-rank", { type: "number", "aria-label": "Rank", title: "Rank" });
  private readonly path = make("input", "sky-files-path", { type: "text", "aria-label": "Folder", placeholder: "working folder" });
  private readonly problem = make("p", "sky-pools-problem", { role: "alert" });
  private readonly table = make("table", "sky-files-table", { "aria-label": "Files" });
  private readonly body = make("tbody");
  private readonly more = make("button", "sky-files-more", { type: "button" });
  private readonly empty = make("p", "sky-pools-empty");
  private readonly fetches = make("ul", "sky-files-fetches", { "aria-label": "Being fetched" });
  private pool: Pool | undefined;
  private folder: Folder | undefined;
  /** The rank whose folder is shown; another one may be typed already. */
  private shown = 0;
  /** Of several questions under way, the last one counts. */
  private asked = 0;

  /** `open` shows a file, `told` says to the person what came of a fetch. */
  constructor(
    private readonly client: Client,
    private readonly open: (file: OpenedFile) => void,
    private readonly told: (message: string, isError: boolean) => void,
  ) {
    this.rank.min = "0";
    const bar = make("div", "sky-files-bar");
    const up = iconButton("up", "Folder above", () => this.goUp());
    const again = iconButton("restart", "Refresh", () => void this.go(this.path.value));
    bar.append(this.rank, this.path, up, again);
    this.rank.addEventListener("change", () => void this.go(this.path.value));
    this.path.addEventListener("change", () => void this.go(this.path.value));
    this.more.addEventListener("click", () => void this.showMore());
    const head = make("thead");
    const titles = make("tr");
    for (const name of ["Name", "Size", "Changed", ""]) {
      const title = make("th", "", { scope: "col" });
      say(title, name);
      titles.append(title);
    }
    head.append(titles);
    this.table.append(head, this.body);
    this.node.append(bar, this.problem, this.table, this.empty, this.more, this.fetches);
    this.draw();
    this.fail("");
  }

  /** Show a pool's files, from its working folder on. */
  async show(pool: Pool): Promise<void> {
    if (this.pool?.id !== pool.id) {
      this.pool = pool;
      this.rank.value = "0";
      await this.go("");
    } else {
      await this.go(this.path.value);
    }
  }

  /** Look into a folder; where that fails, what is shown stays. */
  async go(path: string): Promise<void> {
    const { pool } = this;
    const asked = ++this.asked;
    if (!pool) {
      return;
    }
    mark(this.table, "aria-busy", "true");
    const { chosen } = this;
    try {
      const folder = await this.client.files(pool.id, chosen, path);
      if (asked === this.asked) {
        this.folder = folder;
        this.shown = chosen;
        this.path.value = folder.path;
        this.rank.max = String(folder.ranks - 1);
        this.fail("");
        this.draw();
      }
    } catch (error) {
      if (asked === this.asked) {
        this.fail(reason(error));
      }
    } finally {
      if (asked === this.asked) {
        mark(this.table, "aria-busy", "false");
      }
    }
  }

  private get chosen(): number {
    return Math.max(0, Math.floor(Number(this.rank.value)) || 0);
  }

  private goUp(): void {
    if (this.folder) {
      void this.go(this.folder.path.replace(/\/[^/]*$/, "") || "/");
    }
  }

  private async showMore(): Promise<void> {
    const { pool, folder } = this;
    if (!pool || !folder) {
      return;
    }
    const asked = ++this.asked;
    try {
      const next = await this.client.files(pool.id, this.shown, folder.path, folder.last);
      if (asked === this.asked) {
        this.folder = { ...next, entries: [...folder.entries, ...next.entries] };
        this.draw();
      }
    } catch (error) {
      this.fail(reason(error));
    }
  }

  private fail(why: string): void {
    say(this.problem, why);
    this.problem.hidden = !why;
  }

  private draw(): void {
    const entries = this.folder?.entries ?? [];
    this.body.replaceChildren(...entries.map((entry) => this.row(entry)));
    this.table.hidden = !entries.length;
    say(this.empty, this.folder && !entries.length ? "This folder is empty." : "");
    this.empty.hidden = !this.empty.textContent;
    this.more.hidden = !this.folder?.more;
    say(this.more, `Show more (${(this.folder?.more ?? 0).toLocaleString("en")} left)`);
  }

  private row(entry: Entry): HTMLElement {
    const path = `${this.folder?.path.replace(/\/$/, "")}/${entry.name}`;
    const isFolder = entry.kind === "directory";
    const row = make("tr");
    const name = make("button", "sky-files-name", { type: "button", title: entry.link === null ? entry.name : `${entry.name} → ${entry.link}` });
    const words = make("span");
    say(words, entry.name);
    name.append(icon(isFolder ? "folder" : "file"), words);
    name.disabled = entry.kind === "other" || entry.kind === "link";
    name.addEventListener("click", () => (isFolder ? void this.go(path) : this.openFile(path, entry.name)));
    const fetch = iconButton("download", "Fetch", () => void this.fetch(path));
    mark(fetch, "aria-label", `Fetch ${entry.name}`);
    mark(fetch, "title", "Fetch: copy it to the notebook's folder");
    fetch.disabled = name.disabled;
    const when = cell(date(entry.modified));
    mark(when, "title", new Date(entry.modified * 1000).toLocaleString());
    const first = make("td");
    const last = make("td");
    first.append(name);
    last.append(fetch);
    row.append(first, cell(isFolder ? "" : size(entry.size)), when, last);
    return row;
  }

  private openFile(path: string, name: string): void {
    const { pool, shown } = this;
    if (pool) {
      const read = (from: number) => this.client.file(pool.id, shown, path, from);
      this.open({ title: `${name} (rank ${shown})`, read, fetch: () => void this.fetch(path, shown) });
    }
  }

  /** Have it copied to the notebook, and show how far that is. */
  private async fetch(path: string, rank = this.shown): Promise<void> {
    const { pool } = this;
    if (!pool) {
      return;
    }
    const row = make("li");
    try {
      await this.follow(pool, await this.client.fetch(pool.id, rank, path), row);
    } catch (error) {
      this.told(reason(error), true);
    } finally {
      row.remove();
    }
  }

  private async follow(pool: Pool, begun: Transfer, row: HTMLElement): Promise<void> {
    let stopped = false;
    const words = make("span");
    const bar = make("progress");
    const stop = iconButton("stop", "Stop", () => {
      stopped = true;
    });
    mark(stop, "aria-label", `Stop the fetch of ${begun.name}`);
    row.append(words, bar, stop);
    let [state, silent] = [begun, 0];
    while (state.state === "on") {
      say(words, state.total ? `${state.name}: ${size(state.there)} of ${size(state.total)}` : state.name);
      mark(bar, "max", String(state.total || 1));
      bar.value = state.there;
      if (!row.isConnected) {
        this.fetches.append(row);
      }
      await new Promise((resolve) => setTimeout(resolve, POLL));
      try {
        state = await this.client.fetched(pool.id, begun.fetch, stopped);
        silent = 0;
      } catch (error) {
        if (++silent > MOST_SILENT) {
          throw error;
        }
      }
    }
    this.told(state.message, state.state === "failed");
  }
}

function cell(text: string): HTMLElement {
  const node = make("td");
  say(node, text);
  return node;
}

/** The day, of today the time, and of an earlier year the month: a narrow panel has room for the name then. */
function date(seconds: number): string {
  const [then, now] = [new Date(seconds * 1000), new Date()];
  if (then.toDateString() === now.toDateString()) {
    return then.toTimeString().slice(0, 5);
  }
  const month = then.toLocaleDateString("en", { month: "short" });
  return then.getFullYear() === now.getFullYear() ? `${then.getDate()} ${month}` : `${month} ${then.getFullYear()}`;
}

export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
