import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { Host } from "../../src/run/display-context";
import { RunModel, type Snapshot } from "../../src/run/model";
import { drawPlain } from "../../src/run/rich-output";
import { readDelta } from "../../src/run/schema";
import { RunView } from "../../src/run/view";

const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

function snapshot(ranks: number): Snapshot {
  return {
    version: 1,
    view: "v",
    run: "r",
    title: "sky",
    state: "running",
    finished: false,
    elapsed: 0,
    idle: 0,
    ranks: Array.from({ length: ranks }, (_, rank) => ({ rank, state: "running" as const, parts: [] })),
    items: [],
    order: [],
    notices: [],
    number: 0,
  };
}

describe("the view", () => {
  let model: RunModel;
  let view: RunView;
  let number: number;

  function begin(ranks: number, host: Partial<Host> = {}): void {
    model = new RunModel();
    model.load(snapshot(ranks));
    view = new RunView(model, { draw: drawPlain, ...host });
    document.body.append(view.node);
    // Nothing is laid out here, so nothing can be scrolled.
    Object.defineProperty(view.node.querySelector(".sky-log"), "scrollTop", { get: () => 0, set: () => undefined });
    view.attach();
    number = 0;
  }

  /** What ranks print or show, and a frame after it. */
  async function told(...entries: unknown[][]): Promise<void> {
    const texts = entries.map((entry) => (entry[0] === "s" ? new TextEncoder().encode(entry[2] as string) : undefined));
    const whole = new Uint8Array(texts.flatMap((bytes) => [...(bytes ?? [])]));
    const done = entries.map((entry, index) => {
      const bytes = texts[index];
      return bytes ? ["s", entry[1], 0, bytes.length, 0, -1] : entry;
    });
    const delta = readDelta({ sky: "delta", view: "v", number: ++number, entries: done }, whole.length);
    model.apply(delta, new DataView(whole.buffer));
    await drawn();
  }

  async function drawn(): Promise<void> {
    view.choose((view as unknown as { sight: { tab: number } }).sight.tab, false);
    await frame();
  }

  const rows = () => [...view.node.querySelectorAll(".sky-row")].map((row) => row.textContent);
  const button = (name: string) =>
    [...view.node.querySelectorAll("button")].find((one) => one.textContent?.startsWith(name)) as HTMLButtonElement;

  beforeEach(() => begin(2));
  afterEach(() => {
    localStorage.clear();
    view.detach();
    view.node.remove();
  });

  it("draws nothing more once it has shown the rank that failed", async () => {
    begin(2);
    const failed = snapshot(2);
    failed.ranks[1] = { rank: 1, state: "failed", parts: [], traceback: "ValueError: no data" };
    model.load({ ...failed, finished: true, state: "failed" });
    view.update();
    const asked = vi.spyOn(window, "requestAnimationFrame");
    const frames = () => asked.mock.calls.length;
    await vi.waitFor(() => expect((view as unknown as { sight: { tab: number } }).sight.tab).toBe(1));
    await frame();
    await frame();
    // What the test itself asked for is all.
    const before = frames();
    await frame();
    expect(frames() - before).toBe(1);
    asked.mockRestore();
  });

  it("shows the newest lines of many, and no others", async () => {
    await told(["s", 0, Array.from({ length: 3000 }, (_, line) => `line ${line}\n`).join("")]);
    expect(rows()[rows().length - 1]).toBe("0line 2999");
    expect(rows().length).toBeLessThan(40);
  });

  it("writes colours, and plain text where they were", async () => {
    begin(1);
    await told(["s", 0, "\x1b[31mred\x1b[0m <b>\n"]);
    expect(view.node.querySelector(".sky-row")?.innerHTML).toContain('<span style="color: var(--sky-ansi-1);">red</span> &lt;b');
    await told(["c", 0, false], ["s", 0, "plain\n"]);
    expect(view.node.querySelector(".sky-row")?.innerHTML).toBe("plain");
  });

  it("keeps still what is paused while a flood goes on, and follows again", async () => {
    await told(["s", 0, "first\n"]);
    button("Pause").click();
    await drawn();
    for (let flood = 0; flood < 12; flood++) {
      await told(["s", 1, Array.from({ length: 2000 }, (_, line) => `line ${line}\n`).join("")]);
    }
    expect(rows()).toEqual(["0first"]);
    expect(button("Follow").textContent).toBe("Follow (24,000 new)");
    button("Follow").click();
    await drawn();
    expect(rows()).not.toContain("0first");
    expect(rows()[rows().length - 1]).toBe("1line 1999");
    expect(button("Pause").textContent).toBe("Pause");
  });

  it("counts the lines before what is paused as they were then", async () => {
    const flood = (rank: number): unknown[] => ["s", rank, Array.from({ length: 12_000 }, (_, line) => `line ${line}\n`).join("")];
    const earlier = () => view.node.querySelector(".sky-earlier")?.textContent;
    await told(flood(0));
    const before = earlier();
    expect(before).toMatch(/^… [1-9][\d,]* earlier lines/);
    button("Pause").click();
    await drawn();
    await told(flood(1));
    expect(earlier()).toBe(before);
    button("Follow").click();
    await drawn();
    expect(earlier()).not.toBe(before);
  });

  it("shows lines with a text alone, those that come as well", async () => {
    await told(["s", 0, "loss 1\nother\n"]);
    const search = view.node.querySelector("input") as HTMLInputElement;
    search.value = "LOSS";
    search.dispatchEvent(new Event("input"));
    await told(["s", 1, "more\nloss 2\n"]);
    expect(rows()).toEqual(["0loss 1", "1loss 2"]);
  });

  it("draws equal items once, with their ranks, and plainly where the host has no renderers", async () => {
    const table = { "text/html": "<table><tr><td>7</td></tr></table>" };
    await told(["d", 0, null, table, {}], ["d", 1, null, table, {}], ["d", 1, null, { "image/png": "AAAA" }, {}]);
    const items = [...view.node.querySelectorAll(".sky-item")];
    expect(items.map((item) => item.querySelector(".sky-who")?.textContent)).toEqual(["ranks 0-1", "rank 1"]);
    expect(items[0].querySelector("iframe")?.srcdoc).toContain("<td>7</td>");
    expect(items[1].querySelector("img")?.src).toBe("data:image/png;base64,AAAA");
  });

  it("reads the whole log while the run goes on", async () => {
    const asked: number[] = [];
    begin(2, {
      log: async (rank, from) => {
        asked.push(rank);
        return { from, next: from + 1, end: 2, text: `${rank}:${from}\n` };
      },
    });
    let saved: Blob | undefined;
    URL.createObjectURL = (blob) => {
      saved = blob as Blob;
      return "blob:x";
    };
    button("Download").click();
    await frame();
    expect(asked).toEqual([0, 0, 1, 1]);
    expect(await saved?.text()).toBe("── rank 0\n0:0\n0:1\n\n── rank 1\n1:0\n1:1\n");
  });

  it("shows a traceback while the run goes on, and a line of it once the cell's error has it", async () => {
    begin(2);
    const traceback = "Traceback\n  deep inside\nValueError: no data";
    await told(["e", 1, { state: "failed", note: "", traceback }]);
    const foot = view.node.querySelector(".sky-foot");
    expect(foot?.querySelector("pre")?.textContent).toContain("deep inside");
    expect(foot?.querySelector("details")).toBeNull();
    await told(["e", 0, { state: "done", note: "", traceback: "" }], ["over", 1]);
    expect(foot?.querySelectorAll("details:not([open]) > pre").length).toBe(1);
    expect(foot?.querySelector("summary")?.textContent).toBe("rank 1: ValueError: no data");
  });

  it("shows pictures of ranks beside each other, and hands one to the page that opens it in a tab", async () => {
    const png = (data: string) => ({ "image/png": data });
    await told(["d", 0, null, png("AAAA"), {}], ["d", 1, null, png("BBBB"), {}]);
    expect(view.node.querySelectorAll(".sky-many > .sky-picture").length).toBe(2);
    const opened: unknown[] = [];
    const take = (event: Event) => {
      event.preventDefault();
      opened.push((event as CustomEvent).detail);
    };
    document.addEventListener("sky-open-picture", take);
    view.node.querySelectorAll<HTMLButtonElement>(".sky-open")[1].click();
    document.removeEventListener("sky-open-picture", take);
    expect(opened).toEqual([{ kind: "image/png", data: "BBBB", title: "rank 1" }]);
  });

  it("shows when lines came, for all runs of this browser, and not when it is turned off again", async () => {
    const stamps = () => [...view.node.querySelectorAll(".sky-time")].map((one) => one.textContent);
    button("Times").click();
    await told(["s", 0, "first\n"]);
    expect(stamps()).toEqual([expect.stringMatching(/^\d\d:\d\d:\d\d$/)]);
    begin(1);
    expect(button("Times").getAttribute("aria-pressed")).toBe("true");
    button("Times").click();
    await told(["s", 0, "second\n"]);
    expect(stamps()).toEqual([]);
  });

  it("marks the first line that tells of an error, and keeps still there", async () => {
    await told(["s", 0, "fine\nValueError: no data\nmore\n"]);
    button("First error").click();
    await drawn();
    expect([...view.node.querySelectorAll(".sky-found")].map((row) => row.textContent)).toEqual(["0ValueError: no data"]);
    expect(button("Follow")).toBeDefined();
  });

  it("keeps a line in sight that unfolds similar ones, of a run that has ended as well", async () => {
    localStorage.setItem("sky-similar", "on");
    view.detach();
    view.node.remove();
    begin(2);
    const losses = Array.from({ length: 100 }, (_, step) => `step ${step}\n`).join("");
    const end = { state: "done", note: "", traceback: "" };
    await told(["s", 0, losses], ["s", 1, losses], ["e", 0, end], ["e", 1, end], ["over", 1]);
    expect(view.following).toBe(true);
    (view.node.querySelector(".sky-fold button") as HTMLElement).click();
    await drawn();
    expect(view.following).toBe(false);
  });

  it("is made higher and lower with the arrow keys", async () => {
    await told(["s", 0, "first\n"]);
    const grip = view.node.querySelector(".sky-grip") as HTMLElement;
    const log = view.node.querySelector(".sky-log") as HTMLElement;
    Object.defineProperty(log, "clientHeight", { get: () => 420 });
    grip.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
    expect(log.style.maxHeight).toBe("456px");
    grip.dispatchEvent(new MouseEvent("dblclick"));
    expect(log.style.maxHeight).toBe("var(--sky-height)");
  });

  it("has a name and a tooltip for each button", () => {
    const buttons = [...view.node.querySelectorAll("button.sky-icon-button")];
    expect(buttons.filter((one) => !one.textContent || !one.getAttribute("title"))).toEqual([]);
  });

  it("says in its chip that a rank asks or is stopped, until it goes on", async () => {
    begin(2);
    await told(["e", 1, { state: "running", note: "stopped", traceback: "" }]);
    const chip = view.node.querySelector<HTMLElement>('[data-tab="1"]')!;
    expect([chip.title, chip.querySelector(".sky-chip-waits")?.textContent]).toEqual(["rank 1: stopped", "stopped"]);
    expect(view.node.querySelector(".sky-facts")?.textContent).toContain("rank 1 stopped");
    await told(["e", 1, { state: "running", note: "", traceback: "" }]);
    expect([chip.title, chip.querySelector(".sky-chip-waits")]).toEqual(["rank 1: running", null]);
  });

  it("tells how ranks fare whose output is not shown", async () => {
    begin(1);
    model.load({ ...snapshot(1), unseen: [{ rank: 1, state: "running" }] });
    await drawn();
    expect(view.node.querySelector(".sky-facts")?.textContent).toContain("2 ranks, output of rank 0");
    await told(["e", 0, { state: "done", note: "", traceback: "" }]);
    await told(["e", 1, { state: "timed out", note: "", traceback: "" }], ["over", 1]);
    expect(view.node.querySelector(".sky-facts")?.textContent).toContain("rank 1 timed out");
    expect(view.node.querySelector<HTMLElement>(".sky-dot")?.dataset.state).toBe("timed out");
  });
});
