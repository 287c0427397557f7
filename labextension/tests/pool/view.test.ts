import { beforeEach, describe, expect, it, vi } from "vitest";

import { type PoolFacts, PoolModel } from "../../src/pool/model";
import { PoolPanel } from "../../src/pool/view";
import { GB, node, pool, RUN } from "./stub";

const NOW = 1_800_000_000;
let act: ReturnType<typeof vi.fn>;
let panel: PoolPanel;

beforeEach(() => {
  act = vi.fn(async () => ({ message: "pool train: so it is", done: true }));
  panel = new PoolPanel(act as never, () => undefined);
  document.body.replaceChildren(panel.node);
});

function show(facts: PoolFacts, known = {}): void {
  panel.show(new PoolModel(facts, NOW), { live: true, at: NOW, ...known });
}

function seen(selector: string): HTMLElement[] {
  return [...panel.node.querySelectorAll<HTMLElement>(selector)].filter((one) => !one.closest("[hidden]"));
}

function words(selector: string): string[] {
  return seen(selector).map((one) => one.textContent ?? "");
}

function press(name: string): void {
  const found = seen("button").find((one) => (one.getAttribute("aria-label") ?? one.textContent) === name);
  expect(found, name).toBeDefined();
  found?.focus();
  found?.click();
}

function key(name: string): void {
  document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
}

async function told(): Promise<string> {
  await Promise.resolve();
  await Promise.resolve();
  return words('[role="status"]')[0];
}

function row(index: number): Record<string, string> {
  const cells = [...panel.node.querySelectorAll("tbody tr")[index].querySelectorAll<HTMLElement>("[data-column]")];
  return Object.fromEntries(
    cells.filter((cell) => !cell.hidden).map((cell) => [cell.dataset.column, visible(cell)]),
  );
}

function visible(cell: Element): string {
  return [...cell.childNodes]
    .map((child) => (child instanceof Element ? (child.hasAttribute("hidden") ? "" : visible(child)) : child.textContent))
    .join("");
}

describe("a pool", () => {
  it("says what its machines cost, where they are bought", () => {
    show(pool({ cost: { total: 0.004, hourly: 0.0416, unknown: 1, at: NOW } }));
    expect(words(".sky-live-facts")[0]).toContain("under $0.01 so far, $0.0416 an hour, price of 1 machine unknown");
    show(pool({ cost: null }));
    expect(words(".sky-live-facts")[0]).not.toContain("$");
  });

  it("is shown with its state, what runs, and its nodes with what they use", () => {
    const gpu = { name: "A100", memory: 80 * GB };
    const row0 = [0.5, 4 * GB, 0.9, 60 * GB];
    const gpus = { gpus: [gpu], accelerators: 1, accelerator: "A100", now: row0, samples: [[1, ...row0], [0, ...row0]] };
    const busy = [2, 3].map((rank) => ({ rank, pid: rank, run: "abc", entered: true, memory: 2 * GB }));
    show(pool({ nodes: [node(0, gpus), node(1, { host: "gpu4", ranks: busy, state: "busy" })], world_size: 3, runs: [RUN] }));
    expect(words(".sky-live-facts")).toEqual(["2 local nodes · 3 ranks · ready · up 2 min 5 s"]);
    expect(words(".sky-live-runs li")).toEqual(["In[3]: train(data) · 12 s · silent for 3 s · rank 1 works"]);
    expect(row(0)).toEqual({
      node: "0",
      state: "idle",
      where: "10.0.0.0",
      accelerator: "1 × A100",
      CPU: "50% of 8 cores",
      memory: "4.0 of 16.0 GB",
      GPU: "90%60.0 of 80.0 GB",
      ranks: "rank 0: idle (process 70, 48 MB)",
      up: "1 min 5 s",
      remove: "",
    });
    expect(row(1)).toMatchObject({ state: "busy", where: "gpu4 (10.0.0.1)", remove: "Remove" });
    expect(row(1).ranks).toContain("ranks 2-3 (2 busy)");
    const told = seen("svg").map((one) => one.getAttribute("aria-label"));
    expect(told).toContain("GPU memory, last 1 min: 75% to 75%");
    expect(told).toContain("CPU use, last 1 min: 50% to 50%");
  });

  it("of many GPUs shows their mean, and each where it is unfolded", () => {
    const gpus = [0, 1, 2, 3].map(() => ({ name: "H100", memory: 80 * GB }));
    const now = [0.5, GB, 1, 80 * GB, 0, 0, 1, 80 * GB, 0, 0];
    show(pool({ nodes: [node(0, { gpus, accelerators: 4, now, samples: [[0, ...now]] })] }));
    expect(words("[data-column=GPU] summary")).toEqual(["4 GPUs: 50%160.0 of 320.0 GB"]);
    expect(row(0).GPU).not.toContain("3: 0%");
    const details = panel.node.querySelector("[data-column=GPU] details") as HTMLDetailsElement;
    details.open = true;
    details.dispatchEvent(new Event("toggle"));
    expect(row(0).GPU).toContain("3: 0%0.0 of 80.0 GB");
    show(pool());
    expect(seen("[data-column=GPU]")).toEqual([]);
  });

  it("that starts tells its phases with their times, what each node is at, and how long it usually takes", () => {
    const phase = { text: "", at: 1, nodes: [] };
    const parts = [
      { node: 0, state: "on", elapsed: 12.3, line: "building the environment" },
      { node: 1, state: "done", elapsed: 3, line: "" },
    ];
    const lines = ["looking", "host0: building the environment"];
    const phases = [
      { ...phase, phase: "connect", state: "done", elapsed: 0.5, usual: null, lines: ["ssh"] },
      { ...phase, phase: "environment", state: "on", elapsed: 12.3, usual: 40, lines, nodes: parts },
    ];
    const starting = { state: "starting", now: null, samples: [], ranks: [], uptime: 0 };
    show(pool({ state: "starting", uptime: 0, provider: "ssh", phases, nodes: [node(0, starting), node(1, starting)] }));
    const start = panel.node.querySelector<HTMLDetailsElement>(".sky-live-start");
    expect(start?.open).toBe(false);
    expect(start?.querySelector("progress")?.value).toBeCloseTo(12.3 / 40);
    expect(start?.querySelector("summary > span")?.lastElementChild?.textContent).toBe(
      "environment · 12.3 s of about 40.0 s · host0: building the environment",
    );
    expect(words(".sky-live-start li li")).toEqual(["node 0: 12.3 s · building the environment", "node 1: done, 3.0 s"]);
    expect(words(".sky-live-start pre")).toEqual([lines.join("\n")]);
    expect(seen(".sky-live-nodes")).toEqual([]);
    expect(words("button")).toEqual(["Interrupt", "Shut down"]);
    show(pool({ provider: "ssh", phases: phases.map((one) => ({ ...one, state: "done" })) }));
    expect(start?.open).toBe(false);
    expect(start?.querySelector("summary > span")?.lastElementChild?.textContent).toBe("ready in 12.8 s");
  });

  it("tells of a machine once, however many nodes are on it", () => {
    show(pool({ nodes: [node(0), node(1), node(2)] }));
    expect([row(0).CPU, row(1).CPU, row(2).memory]).toEqual(["50% of 8 cores", undefined, undefined]);
    const cpu = panel.node.querySelector("tbody [data-column=CPU]") as HTMLTableCellElement;
    expect(cpu.rowSpan).toBe(3);
    const hosts = ["a", "a", "b"].map((host, number) => node(number, { host }));
    show(pool({ provider: "ssh", nodes: hosts }));
    expect(cpu.rowSpan).toBe(2);
    expect([row(1).CPU, row(2).CPU]).toEqual([undefined, "50% of 8 cores"]);
  });

  it("tells of machines that are away or apart, and of what is broken", () => {
    show(pool({ state: "broken", why: "the forkserver ended", away: { gpu4: "unreachable" }, apart: { gpu5: "gpu5 sees no head" } }));
    expect(words(".sky-live-facts")[0]).toContain("broken (the forkserver ended)");
    expect(words(".sky-live-notes li")).toEqual([
      "gpu4: unreachable",
      "gpu5 sees no head: its control connection goes through here, no collectives",
    ]);
  });

  it("of a notebook without a kernel is what it was, with nothing to press", () => {
    show(pool({ runs: [RUN] }), { live: false });
    expect(words(".sky-live-note")[0]).toContain("As it was at");
    expect(words("button")).toEqual([]);
    show(pool(), { gone: true });
    expect(words(".sky-live-note")[0]).toContain("This pool has ended.");
    expect(words("button")).toEqual([]);
  });

  it("is text, whatever its nodes say of themselves", () => {
    const bad = "<img src=x onerror=alert(1)>";
    show(pool({ name: bad, why: bad, away: { x: bad }, nodes: [node(0, { host: bad, state: bad })], runs: [{ ...RUN, title: bad }] }));
    expect(panel.node.querySelector("img")).toBe(null);
  });
});

describe("what is done to a pool", () => {
  it("interrupts at once, and says what came of it", async () => {
    show(pool({ runs: [RUN] }));
    press("Interrupt");
    expect(act).toHaveBeenCalledWith({ action: "interrupt", pool: "train" });
    expect(await told()).toBe("pool train: so it is");
    show(pool());
    expect(words("button")).not.toContain("Interrupt");
  });

  it("asks before what loses a rank's memory, and the keyboard's first answer is no", async () => {
    show(pool({ runs: [RUN] }));
    press("Restart");
    expect(words(".sky-live-asked p")).toEqual([
      "Restart all ranks? What the ranks have in memory is lost. The cell that runs there ends.",
    ]);
    expect(document.activeElement?.textContent).toBe("Cancel");
    key("Escape");
    expect(seen(".sky-live-asked")).toEqual([]);
    expect(document.activeElement?.textContent).toBe("Restart");
    expect(act).not.toHaveBeenCalled();
    press("Shut down");
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(act).toHaveBeenCalledWith({ action: "down", pool: "train" });
    expect(await told()).toBe("pool train: so it is");
  });

  it("follows what takes long to its end", async () => {
    act.mockResolvedValue({ message: "begun, and not done yet", done: false });
    show(pool());
    press("Restart");
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(await told()).toBe("begun, and not done yet");
    show(pool({ state: "restarting" }));
    expect(words("button")).toEqual(["Shut down"]);
    show(pool());
    expect(await told()).toBe("Restart: done, 2 nodes ready.");
  });

  it("changes the number of local nodes, and says what is wrong with another number", async () => {
    show(pool());
    press("Add nodes");
    const field = panel.node.querySelector("input") as HTMLInputElement;
    expect(document.activeElement).toBe(field);
    expect([field.type, field.value]).toEqual(["number", "3"]);
    field.value = "2";
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(await told()).toBe("A whole number of nodes, other than the 2 that there are.");
    field.value = "4";
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(act).toHaveBeenCalledWith({ action: "resize", nodes: 4, pool: "train" });
    await told();
  });

  it("adds hosts by name, and removes a node by its number", async () => {
    show(pool({ provider: "ssh", nodes: [node(0), node(1, { host: "gpu4" })] }));
    press("Add nodes");
    (panel.node.querySelector("input") as HTMLInputElement).value = " gpu5, me@gpu6:2222 ";
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(act).toHaveBeenCalledWith({ action: "resize", add: ["gpu5", "me@gpu6:2222"], pool: "train" });
    await told();
    press("Remove node 1");
    expect(words(".sky-live-asked p")[0]).toContain("Remove node 1 (gpu4)?");
    (panel.node.querySelector(".sky-live-ends") as HTMLElement).click();
    expect(act).toHaveBeenLastCalledWith({ action: "resize", remove: [1], pool: "train" });
    await told();
  });

  it("does not answer for another pool than was asked about", async () => {
    show(pool({ nodes: [node(0), node(1), node(2)] }));
    press("Remove node 2");
    show(pool());
    expect(seen(".sky-live-asked")).toEqual([]);
    expect(await told()).toContain("changed meanwhile");
    expect(act).not.toHaveBeenCalled();
  });

  it("says why it was refused", async () => {
    act.mockRejectedValue(new Error("pool 'train' is being restarted just now"));
    show(pool({ runs: [RUN] }));
    press("Interrupt");
    expect(await told()).toBe("pool 'train' is being restarted just now");
  });

  it("keeps what is typed from the notebook", () => {
    const heard = vi.fn();
    document.body.addEventListener("keydown", heard);
    show(pool());
    press("Add nodes");
    key("d");
    expect(heard).not.toHaveBeenCalled();
    document.body.removeEventListener("keydown", heard);
  });
});
