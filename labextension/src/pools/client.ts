// Sky Jupyter's part of the Jupyter server: the list of pools, and what may be done to one.
import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

import {
  type Content, type Folder, type Log, type Outcome, type Pool, readContent, readFolder, readLog, readOutcome, readPools, readTerminal,
  readTransfer,
  type Transfer,
} from "./schema";

/** The event that the server sends when the list has changed. */
export const CHANGED = "urn:sky-jupyter:pools:v1";

export type { Content, Entry, Folder, Log, Pool, Transfer } from "./schema";

export type Action = "interrupt" | "restart" | "where" | "down";

/** What the panel asks of the server. */
export interface Client {
  list(): Promise<Pool[]>;
  log(pool: string): Promise<Log>;
  act(pool: string, action: Action): Promise<Outcome>;
  /** Open a terminal of the server on a rank's node; gives its name. */
  terminal(pool: string, rank: number): Promise<string>;
  /** The entries of a folder of a rank's node, those after the name `after`. */
  files(pool: string, rank: number, path: string, after?: string): Promise<Folder>;
  /** What is in a file from a byte on; below 0, so many before its end. */
  file(pool: string, rank: number, path: string, from?: number): Promise<Content>;
  /** Have the kernel fetch a file or folder into its working folder. */
  fetch(pool: string, rank: number, path: string): Promise<Transfer>;
  /** How far that is; or stop it. */
  fetched(pool: string, fetch: string, stop?: boolean): Promise<Transfer>;
}

/** Asks by HTTP, as the user who is logged in; an error's message is what the server says. */
export class ServerClient implements Client {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  async list(): Promise<Pool[]> {
    return readPools(await this.ask("pools"));
  }

  async log(pool: string): Promise<Log> {
    return readLog(await this.ask(`pools/${pool}/log`));
  }

  async act(pool: string, action: Action): Promise<Outcome> {
    return readOutcome(await this.ask(`pools/${pool}/${action}`, { method: "POST", body: "{}" }));
  }

  async terminal(pool: string, rank: number): Promise<string> {
    return readTerminal(await this.ask(`pools/${pool}/terminal`, { method: "POST", body: JSON.stringify({ rank }) }));
  }

  async files(pool: string, rank: number, path: string, after = ""): Promise<Folder> {
    return readFolder(await this.tell(pool, "files", { rank, path, after }));
  }

  async file(pool: string, rank: number, path: string, from = 0): Promise<Content> {
    return readContent(await this.tell(pool, "file", { rank, path, from }));
  }

  async fetch(pool: string, rank: number, path: string): Promise<Transfer> {
    return readTransfer(await this.tell(pool, "fetch", { rank, path }));
  }

  async fetched(pool: string, fetch: string, stop = false): Promise<Transfer> {
    return readTransfer(await this.tell(pool, "fetch", { fetch, stop }));
  }

  private tell(pool: string, action: string, content: Record<string, unknown>): Promise<unknown> {
    return this.ask(`pools/${pool}/${action}`, { method: "POST", body: JSON.stringify(content) });
  }

  private async ask(path: string, init: RequestInit = {}): Promise<unknown> {
    const url = URLExt.join(this.settings.baseUrl, "sky-jupyter", path);
    const response = await ServerConnection.makeRequest(url, { cache: "no-store", ...init }, this.settings);
    const body = (await response.json().catch(() => null)) as { message?: unknown } | null;
    if (!response.ok) {
      const absent = response.status === 404 && path === "pools";
      const why = absent ? "this server runs without Sky Jupyter's part; start it anew" : body?.message;
      throw new Error(why ? String(why) : `the server answers ${response.status}`);
    }
    return body;
  }
}
