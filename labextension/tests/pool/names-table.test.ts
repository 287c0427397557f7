import { beforeEach, describe, expect, it, vi } from "vitest";

import { NamesTable, sorted } from "../../src/pool/names-table";
import type { NameFacts } from "../../src/pool/schema";

function name(name: string, more: Partial<NameFacts> = {}): NameFacts {
  const texts = { type: "int", value: "", shape: "", dtype: "", device: "", size: "", origin: "the nodes", note: "" };
  return { name, ...texts, bytes: null, magnitude: null, when: null, ...more };
}

const ROWS = [
  name("loss", { type: "float", value: "0.31 to 0.34 on 8 ranks", magnitude: 0.34, size: "24 bytes", bytes: 24 }),
  name("data", { type: "ndarray", shape: "1000", magnitude: 1000, size: "8 kB", bytes: 8000 }),
  name("os", { type: "module" }),
];
let ask: ReturnType<typeof vi.fn>;
let table: NamesTable;

beforeEach(() => {
  ask = vi.fn(async () => ({ names: ROWS, notes: ["rank 1 is busy: shown as of 14:03:20"] }));
  table = new NamesTable(ask as never);
  document.body.replaceChildren(table.node);
});

async function unfold(): Promise<void> {
  table.node.open = true;
  table.node.dispatchEvent(new Event("toggle"));
  await vi.waitFor(() => expect(names()).not.toEqual([]));
}

function names(): string[] {
  return [...table.node.querySelectorAll("tbody th")].map((one) => one.textContent ?? "");
}

function press(text: string): void {
  [...table.node.querySelectorAll("button")].find((one) => one.textContent === text)?.click();
}

describe("the variables of a pool", () => {
  it("are asked for only while they are unfolded and a kernel answers", async () => {
    table.show("train", true);
    expect(ask).not.toHaveBeenCalled();
    await unfold();
    expect(ask).toHaveBeenCalledWith("train");
    expect(names()).toEqual(["data", "loss", "os"]);
    expect(table.node.textContent).toContain("rank 1 is busy");
    table.show("train", false);
    expect(ask).toHaveBeenCalledTimes(1);
    // What was told last stays.
    expect(table.node.hidden).toBe(false);
  });

  it("show no column in which nothing stands", async () => {
    table.show("train", true);
    await unfold();
    const shown = [...table.node.querySelectorAll<HTMLElement>("thead th")].filter((one) => !one.hidden);
    expect(shown.map((one) => one.dataset.column)).toEqual(["name", "type", "value", "shape", "size", "from"]);
  });

  it("keep a size and its unit on one line", async () => {
    table.show("train", true);
    await unfold();
    const sizes = [...table.node.querySelectorAll('td[data-column="size"]')].map((one) => one.textContent);
    expect(sizes).toEqual(["8\u00a0kB", "24\u00a0bytes", ""]);
  });

  it("are sorted by a column, and again the other way", async () => {
    table.show("train", true);
    await unfold();
    press("size");
    expect(names()).toEqual(["data", "loss", "os"]);
    press("size");
    expect(names()).toEqual(["loss", "data", "os"]);
    expect(table.node.querySelector('[data-column="size"]')?.getAttribute("aria-sort")).toBe("ascending");
    expect(sorted(ROWS, "type", false).map((row) => row.name)).toEqual(["loss", "os", "data"]);
  });

  it("copy the line that pulls one", async () => {
    const write = vi.fn(async () => undefined);
    vi.stubGlobal("navigator", { clipboard: { writeText: write } });
    table.show("train", true);
    await unfold();
    press("loss");
    await vi.waitFor(() => expect(write).toHaveBeenCalledWith("%sky pull loss"));
    await vi.waitFor(() => expect(table.node.textContent).toContain("Copied: %sky pull loss"));
    vi.unstubAllGlobals();
  });

  it("say why nothing is heard of them", async () => {
    ask.mockRejectedValue(new Error("the kernel does not answer"));
    table.show("train", true);
    table.node.open = true;
    table.node.dispatchEvent(new Event("toggle"));
    await vi.waitFor(() => expect(table.node.textContent).toContain("Nothing new is heard of them: the kernel does not"));
  });
});
