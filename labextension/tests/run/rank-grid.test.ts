import { afterEach, beforeEach, describe, expect, it } from "vitest";

import { RunModel, type Snapshot } from "../../src/run/model";
import { cellAfter, matcher } from "../../src/run/rank-grid";
import { windowOf } from "../../src/run/rank-output";
import { drawPlain } from "../../src/run/rich-output";
import { culprit } from "../../src/run/run-status";
import { RunView } from "../../src/run/view";

const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

function snapshot(ranks: number): Snapshot {
  return {
    version: 1, view: "v", run: "r", title: "sky", state: "running", finished: false, elapsed: 0, idle: 0,
    ranks: Array.from({ length: ranks }, (_, rank) => ({ rank, state: "running" as const, parts: [{ text: "ready\n" }] })),
    items: [], order: [], notices: [], number: 0,
  };
}

describe("the grid of ranks", () => {
  let model: RunModel;
  let view: RunView;
  let number: number;

  function begin(ranks: number): void {
    model = new RunModel();
    model.load(snapshot(ranks));
    view = new RunView(model, { draw: drawPlain });
    document.body.append(view.node);
    Object.defineProperty(view.node.querySelector(".sky-log"), "scrollTop", { get: () => 0, set: () => undefined });
    view.attach();
    number = 0;
  }

  async function told(...entries: unknown[][]): Promise<void> {
    model.apply({ sky: "delta", view: "v", number: ++number, entries } as never, undefined);
    view.choose((view as unknown as { sight: { tab: number } }).sight.tab, false);
    await frame();
  }

  const cells = (all = "") => [...view.node.querySelectorAll<HTMLElement>(`.sky-cell${all}`)];
  const shown = () => cells().filter((cell) => !cell.hidden).map((cell) => cell.dataset.tab);
  const stops = () => cells('[tabindex="0"]').map((cell) => cell.dataset.tab);
  const chosen = () => cells('[aria-selected="true"]').map((cell) => cell.dataset.tab);
  const press = (key: string) => {
    const cell = cells('[tabindex="0"]')[0];
    cell.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    return frame();
  };
  const first = () => view.node.querySelector<HTMLButtonElement>(".sky-ranks-first")!;
  const search = async (text: string) => {
    const input = view.node.querySelector<HTMLInputElement>(".sky-ranks input")!;
    input.value = text;
    input.dispatchEvent(new Event("input"));
    await frame();
  };

  beforeEach(async () => {
    begin(1000);
    await frame();
  });
  afterEach(() => {
    view.detach();
    view.node.remove();
  });

  it("stands where tabs would be too many, with one line for what all ranks said", () => {
    expect(cells().length).toBe(1000);
    expect(view.node.querySelector<HTMLElement>(".sky-tabs")?.hidden).toBe(true);
    expect([...view.node.querySelectorAll(".sky-row")].map((row) => row.textContent)).toEqual(["0-999ready"]);
    expect(view.node.querySelector(".sky-panel")?.getAttribute("aria-label")).toBe("Output of all ranks");
    begin(32);
    expect(view.node.querySelectorAll(".sky-cell").length).toBe(0);
  });

  it("puts the rank on top that failed first, shows it, and tells each state", async () => {
    expect(first().textContent).toBe("No rank has failed");
    const failed = (rank: number, why: string) => ["e", rank, { state: "failed", note: "", traceback: `Traceback\nValueError: ${why}` }];
    await told(failed(417, "loss is nan"));
    await told(failed(3, "collective broke"), ["e", 5, { state: "done", note: "", traceback: "" }]);
    expect(first().textContent).toBe("First: rank 417 failed: ValueError: loss is nan");
    expect([chosen(), stops(), culprit(model)]).toEqual([["417"], ["417"], 417]);
    expect([417, 3, 5, 0].map((rank) => cells()[rank].title)).toEqual(["rank 417: failed", "rank 3: failed", "rank 5: done", "rank 0: running"]);
    const counts = [...view.node.querySelectorAll<HTMLElement>(".sky-ranks-head button")].filter((one) => !one.hidden);
    expect(counts.map((one) => one.textContent)).toEqual(["All 1,000 ranks", "2 failed", "997 running", "1 done"]);
    counts[0].click();
    await frame();
    expect(view.node.querySelector(".sky-trouble")?.textContent).toContain("loss is nan");
    counts[1].click();
    expect(shown()).toEqual(["3", "417"]);
    counts[1].click();
    expect(shown().length).toBe(1000);
  });

  it("is gone through with the keyboard: one stop, and arrows among those that are shown", async () => {
    expect(stops()).toEqual(["0"]);
    await press("ArrowRight");
    await press("ArrowRight");
    expect([chosen(), stops(), (document.activeElement as HTMLElement).dataset.tab]).toEqual([["2"], ["2"], "2"]);
    await press("End");
    await press("ArrowRight");
    expect(chosen()).toEqual(["999"]);
    await search("100-109, 500");
    expect(shown().length).toBe(11);
    expect(stops()).toEqual(["100"]);
    await press("End");
    expect(chosen()).toEqual(["500"]);
    expect(view.node.querySelector(".sky-ranks-found")?.textContent).toBe("11 shown");
    await search("");
    expect(stops()).toEqual(["500"]);
  });

  it("finds ranks by number, range, state and what they raised", async () => {
    await told(["e", 7, { state: "died", note: "killed by SIGKILL", traceback: "" }]);
    const found = (text: string) => model.ranks.filter(matcher(text)).map(({ rank }) => rank);
    expect([found("7"), found("0-2 9"), found("died"), found("sigkill"), found("nothing")]).toEqual([[7], [0, 1, 2, 9], [7], [7], []]);
  });

  it("does not go round at its edges", () => {
    const after = (key: string, at: number) => cellAfter(key, at, 100, () => 30);
    expect(["ArrowDown", "ArrowUp", "ArrowLeft", "End", "a"].map((key) => after(key, 45))).toEqual([75, 15, 44, 99, undefined]);
    expect([after("ArrowDown", 80), after("ArrowUp", 10), after("ArrowRight", 99), after("ArrowLeft", 0)]).toEqual(Array(4).fill(undefined));
  });

  it("keeps a part of the lines of each of very many ranks, and few different errors", async () => {
    expect([1, 64, 128, 1000, 100_000].map(windowOf)).toEqual([5000, 5000, 2500, 320, 200]);
    await told(...Array.from({ length: 40 }, (_, rank) => ["e", rank, { state: "failed", note: "", traceback: `ValueError: ${rank}` }]));
    view.choose(-1);
    await frame();
    expect(view.node.querySelectorAll(".sky-trouble").length).toBe(32);
    expect(view.node.querySelector(".sky-foot")?.textContent).toContain("8 more ranks have other errors");
  });
});
