// Sky Jupyter's part of the Jupyter server: the list of pools, and what may be done to one.
import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

/** The event that the server sends when the list has changed. */
export const CHANGED = "urn:sky-jupyter:pools:v1";

export interface Run {
  id: string;
  state: string;
  title: string;
  /** Seconds since 1970. */
  began: number;
  elapsed: number | null;
  ranks: number | null;
}

export interface Pool {
  id: string;
  name: string;
  provider: string;
  nodes: number;
  state: string;
  keep: boolean;
  began: number;
  /** Who manages it; null for nobody. The kernel and the path are null unless this server started that kernel. */
  manager: { who: string; kernel: string | null; path: string | null } | null;
  /** Whether its processes, or its keys, are on the server's machine. */
  here: boolean;
  running: Run[];
  cost: number | null;
}

export interface Log {
  run: Run;
  ranks: { rank: number; text: string }[];
}

export type Action = "interrupt" | "restart" | "where" | "down";

/** What came of an action. */
export interface Outcome {
  message?: string;
  /** Of `where`, each rank's stack. */
  text?: string;
}

/** What the panel asks of the server. */
export interface Client {
  list(): Promise<Pool[]>;
  log(pool: string): Promise<Log>;
  act(pool: string, action: Action): Promise<Outcome>;
}

/** Asks by HTTP, as the user who is logged in; an error's message is what the server says. */
export class ServerClient implements Client {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  async list(): Promise<Pool[]> {
    return ((await this.ask("pools")) as { pools: Pool[] }).pools;
  }

  async log(pool: string): Promise<Log> {
    return (await this.ask(`pools/${pool}/log`)) as Log;
  }

  async act(pool: string, action: Action): Promise<Outcome> {
    return (await this.ask(`pools/${pool}/${action}`, { method: "POST", body: "{}" })) as Outcome;
  }

  private async ask(path: string, init: RequestInit = {}): Promise<unknown> {
    const url = URLExt.join(this.settings.baseUrl, "sky-jupyter", path);
    const response = await ServerConnection.makeRequest(url, { cache: "no-store", ...init }, this.settings);
    const body = (await response.json().catch(() => ({}))) as { message?: string };
    if (!response.ok) {
      const absent = response.status === 404 && path === "pools";
      const why = absent ? "this server runs without Sky Jupyter's part; start it anew" : body.message;
      throw new Error(why || `the server answers ${response.status}`);
    }
    return body;
  }
}
