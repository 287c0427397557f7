import { beforeEach, expect, test, vi } from "vitest";

import type { Client, Pool } from "../src/pools/client";
import { logNode, plain } from "../src/pools/run-dialog";
import { candidates, type ListActions, nameOf, PoolsView } from "../src/pools/view";
import { type Events, Watcher } from "../src/pools/watcher";

const NOW = 1_800_000_000;

function pool(changes: Partial<Pool> = {}): Pool {
  return {
    id: "a1b2c3d4",
    name: "train",
    provider: "local",
    nodes: 2,
    state: "ready",
    keep: true,
    began: NOW - 300,
    manager: { who: "notebook ~/train.ipynb (process 7)", kernel: "k", path: "books/train.ipynb" },
    here: true,
    running: [],
    cost: null,
    ...changes,
  };
}

const RUN = { id: "feed", state: "running", title: "model.fit(x)", began: NOW - 12, elapsed: null, ranks: null };
const NAMES: (keyof ListActions)[] = ["open", "logs", "files", "where", "interrupt", "restart", "attach", "down"];

let deeds: Record<keyof ListActions, ReturnType<typeof vi.fn>>;
let view: PoolsView;

beforeEach(() => {
  deeds = Object.fromEntries(NAMES.map((name) => [name, vi.fn()])) as typeof deeds;
  view = new PoolsView(deeds as unknown as ListActions);
  document.body.replaceChildren(view.node);
});

function offered(): string[] {
  return [...view.node.querySelectorAll("button")].filter((button) => !button.hidden).map((button) => button.textContent ?? "");
}

function words(): string {
  const shown = [...view.node.querySelectorAll<HTMLElement>("h3, p, span")].filter((node) => !node.hidden && !node.closest("button"));
  return shown.map((node) => node.textContent).filter(Boolean).join("\n");
}

test("no pool is said in words", () => {
  expect(words()).toContain("No pools yet");
});

test("a pool is shown with its nodes, age, notebook and cell", () => {
  view.show([pool({ running: [RUN] })], NOW);
  expect(words().split("\n")).toEqual([
    "train",
    "running",
    "2 local nodes · 5 min",
    "Managed by books/train.ipynb",
    "model.fit(x) · 12 s",
    "1 pool",
  ]);
  expect(offered()).toEqual(["Open notebook", "Logs", "Files", "Where", "Interrupt", "Restart", "Shut down"]);
  view.show([pool({ running: [{ ...RUN, notebook: "notebook ~/old/a.ipynb" }, { ...RUN, notebook: "" }] })], NOW);
  expect(words()).toContain("model.fit(x) · 12 s · a.ipynb\nmodel.fit(x) · 12 s\n");
});

test("what a pool has cost is shown where its provider has prices", () => {
  const cost = { total: 1.5, hourly: 13.2, unknown: 0, at: NOW - 600 };
  view.show([pool({ cost })], NOW);
  // It goes on at its price since its manager looked last.
  expect(words()).toContain("2 local nodes · 5 min · $3.70 so far, $13.20 an hour");
  view.show([pool({ cost: { ...cost, total: null, hourly: null, unknown: 2 } })], NOW);
  expect(words()).toContain("2 local nodes · 5 min · price unknown");
});

test("what a scheduler leaves a pool of its time is shown, and runs down", () => {
  const cost = { total: null, hourly: null, unknown: 0, at: NOW - 600, ends: NOW + 3900 };
  view.show([pool({ cost })], NOW);
  expect(words()).toContain("2 local nodes · 5 min · 1 h 05 min of the allocation left");
  view.show([pool({ cost: { ...cost, ends: NOW + 480 } })], NOW);
  expect(words()).toContain("2 local nodes · 5 min · 8 min of the allocation left");
});

test("a pool that nobody manages is marked, and may be taken up or ended", () => {
  view.show([pool({ manager: null })], NOW);
  expect(view.node.querySelector<HTMLElement>("li")?.dataset.state).toBe("lost");
  expect(words()).toContain("Detached: no notebook is using it");
  expect(words()).toContain("1 pool, 1 detached");
  expect(offered()).toEqual(["Logs", "Attach here", "Shut down"]);
});

test("nothing is offered for what another server or machine manages", () => {
  view.show([pool({ manager: { who: "script x.py (process 9)", kernel: null, path: null } })], NOW);
  expect(offered()).toEqual([]);
  view.show([pool({ manager: null, here: false })], NOW);
  expect(offered()).toEqual([]);
});

test("a button does its deed to its own pool as it is now", () => {
  view.show([pool({ id: "one", name: "one" }), pool({ id: "two", name: "two" })], NOW);
  const later = pool({ id: "two", name: "two", nodes: 4 });
  view.show([pool({ id: "one", name: "one" }), later], NOW);
  view.node.querySelector<HTMLButtonElement>('[aria-label="Shut down: pool two"]')?.click();
  expect(deeds.down.mock.calls).toEqual([[later]]);
});

test("terminals are offered where the server has them, of pools that this machine can reach", () => {
  const shell = vi.fn();
  view = new PoolsView({ ...deeds, shell } as unknown as ListActions);
  const far = pool({ id: "far", name: "far", here: false });
  const script = pool({ id: "script", name: "script", manager: { who: "script x.py (process 9)", kernel: null, path: null } });
  const lost = pool({ id: "lost", name: "lost", manager: null });
  view.show([pool(), far, script, lost], NOW);
  const buttons = [...view.node.querySelectorAll<HTMLButtonElement>('[aria-label^="Terminal: "]')].filter((button) => !button.hidden);
  expect(buttons.map((button) => button.getAttribute("aria-label"))).toEqual(["Terminal: pool train", "Terminal: pool lost"]);
  buttons[1]?.click();
  expect(shell.mock.calls).toEqual([[lost]]);
});

test("the focus stays where it is while the list changes around it", () => {
  view.show([pool({ id: "two", name: "two" })], NOW);
  const button = view.node.querySelector<HTMLButtonElement>('[aria-label="Logs: pool two"]');
  button?.focus();
  view.show([pool({ id: "one", name: "one" }), pool({ id: "two", name: "two", running: [RUN] })], NOW);
  expect(document.activeElement).toBe(button);
  expect([...view.node.querySelectorAll("h3")].map((node) => node.textContent)).toEqual(["one", "two"]);
  view.show([pool({ id: "one", name: "one" })], NOW);
  expect(document.activeElement).toBe(view.node);
});

test("two pools of one name are told apart by their ids", () => {
  view.show([pool({ id: "one" }), pool({ id: "two" }), pool({ id: "three", name: "other" })], NOW);
  const twins = [...view.node.querySelectorAll<HTMLElement>(".sky-pool-twin")].filter((node) => !node.hidden);
  expect(twins.map((node) => node.textContent)).toEqual(["one", "two"]);
});

test("a command goes to the notebook's own pool, else to those that it can be done to, or to the one that is named", () => {
  const [mine, other, lost] = [pool({ id: "mine" }), pool({ id: "other", manager: { who: "n", kernel: "k2", path: "o" } }), pool({ id: "lost", manager: null })];
  const pools = [mine, other, lost];
  expect(candidates(pools, "restart", "k")).toEqual([mine]);
  expect(candidates(pools, "restart", "")).toEqual([mine, other]);
  expect(candidates(pools, "attach", "k")).toEqual([lost]);
  expect(candidates(pools, "down", "k", "other")).toEqual([other]);
  expect(candidates(pools, "interrupt", "k")).toEqual([]);
});

test("a magic is given the id where two pools have one name", () => {
  const [one, two] = [pool({ id: "one" }), pool({ id: "two" })];
  expect([nameOf(one, [one]), nameOf(one, [one, two])]).toEqual(["train", "one"]);
});

test("names are text, whatever they hold", () => {
  view.show([pool({ name: "<img src=x>", running: [{ ...RUN, title: "<b>x</b>" }] })], NOW);
  expect(view.node.querySelector("img, b")).toBeNull();
});

class Server implements Client {
  pools: Pool[] = [];
  asked = 0;
  why = "";

  async list(): Promise<Pool[]> {
    this.asked += 1;
    if (this.why) {
      throw new Error(this.why);
    }
    return this.pools;
  }

  log = vi.fn();
  act = vi.fn();
  terminal = vi.fn();
  files = vi.fn();
  file = vi.fn();
  fetch = vi.fn();
  fetched = vi.fn();
}

test("the list is asked for when the server says that it has changed, and not for other events", async () => {
  const server = new Server();
  const heard: { schema_id: string }[] = [];
  let wake = () => undefined as void;
  const events: Events = {
    async *[Symbol.asyncIterator]() {
      for (;;) {
        while (heard.length) {
          yield heard.shift() as { schema_id: string };
        }
        await new Promise<void>((resolve) => (wake = resolve));
      }
    },
  };
  const watcher = new Watcher(server, events, 3600);
  await vi.waitFor(() => expect(server.asked).toBe(1));
  server.pools = [pool()];
  heard.push({ schema_id: "something else" });
  wake();
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(watcher.pools).toEqual([]);
  heard.push({ schema_id: "urn:sky-jupyter:pools:v1" });
  wake();
  await vi.waitFor(() => expect(watcher.pools).toEqual([pool()]));
  watcher.dispose();
});

test("what the server cannot say is a problem, and the last list stays until it can", async () => {
  const server = new Server();
  server.pools = [pool()];
  const watcher = new Watcher(server, null, 3600);
  await vi.waitFor(() => expect(watcher.pools.length).toBe(1));
  server.why = "the registry cannot be used";
  await watcher.refresh().catch(() => undefined);
  await vi.waitFor(() => expect(watcher.problem).toBe("the registry cannot be used"));
  expect(watcher.pools.length).toBe(1);
  watcher.dispose();
});

test("a log is text, a part a rank, as a terminal would leave it", () => {
  expect(plain("\u001b[31mred\u001b[0m\n 1%\r 50%\r100%\r\nend\r\n")).toBe("red\n100%\nend\n");
  const node = logNode({ run: { ...RUN, state: "ok", elapsed: 65 }, ranks: [{ rank: 0, text: "<i>a" }, { rank: 3, text: "b" }] });
  expect([...node.querySelectorAll("h4")].map((title) => title.textContent)).toEqual(["Rank 0", "Rank 3"]);
  expect([...node.querySelectorAll("pre")].map((lines) => lines.textContent)).toEqual(["<i>a", "b"]);
  expect(node.textContent).toContain("Run feed (ok, 1 min): model.fit(x)");
});
