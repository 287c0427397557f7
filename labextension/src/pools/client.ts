// Sky Jupyter's part of the Jupyter server: the list of pools, and what may be done to one.
import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

import { type Log, type Outcome, type Pool, readLog, readOutcome, readPools, readTerminal } from "./schema";

/** The event that the server sends when the list has changed. */
export const CHANGED = "urn:sky-jupyter:pools:v1";

export type { Log, Pool } from "./schema";

export type Action = "interrupt" | "restart" | "where" | "down";

/** What the panel asks of the server. */
export interface Client {
  list(): Promise<Pool[]>;
  log(pool: string): Promise<Log>;
  act(pool: string, action: Action): Promise<Outcome>;
  /** Open a terminal of the server on a rank's node; gives its name. */
  terminal(pool: string, rank: number): Promise<string>;
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
