import { beforeEach, expect, test, vi } from "vitest";

import { size } from "../src/format";
import type { Client, Content, Entry, Folder, Pool, Transfer } from "../src/pools/client";
import { FileViewer } from "../src/pools/file-viewer";
import { FilesView, type OpenedFile } from "../src/pools/files-view";
import { readContent, readFolder } from "../src/pools/schema";

const POOL = { id: "a1b2c3d4", name: "train" } as Pool;
const entry = (name: string, changes: Partial<Entry> = {}): Entry => ({ name, kind: "file", size: 2048, modified: 1_700_000_000, link: null, ...changes });
const folder = (path: string, entries: Entry[], more = 0): Folder => ({ path, ranks: 4, entries, more, last: entries[entries.length - 1]?.name ?? "" });
const fetched = (changes: Partial<Transfer>): Transfer => ({ fetch: "f1", name: "log", there: 0, total: 0, state: "on", message: "", ...changes });

let client: { [name in "files" | "file" | "fetch" | "fetched"]: ReturnType<typeof vi.fn> };
let opened: OpenedFile[];
let told: [string, boolean][];
let view: FilesView;

const settled = () => new Promise((resolve) => setTimeout(resolve));
const rows = () => [...view.node.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")].slice(0, 3).map((cell) => cell.textContent).join(" | "));
const button = (name: string) =>
  [...view.node.querySelectorAll("button")].find((one) => (one.getAttribute("aria-label") ?? one.textContent) === name) as HTMLButtonElement;
const field = (name: string) => view.node.querySelector(`input[aria-label="${name}"]`) as HTMLInputElement;

beforeEach(async () => {
  client = { files: vi.fn(), file: vi.fn(), fetch: vi.fn(), fetched: vi.fn() };
  [opened, told] = [[], []];
  view = new FilesView(client as unknown as Client, (file) => opened.push(file), (...words) => told.push(words));
  document.body.replaceChildren(view.node);
  client.files.mockResolvedValue(folder("/home/ada", [entry("out", { kind: "directory" }), entry("log"), entry("gone", { kind: "link", link: "away" })]));
  await view.show(POOL);
});

test("a folder is shown with sizes and dates, and what leads nowhere cannot be opened", () => {
  expect(client.files).toHaveBeenCalledWith(POOL.id, 0, "");
  expect(rows()).toEqual(["out |  | Nov 2023", "log | 2.0 kB | Nov 2023", "gone | 2.0 kB | Nov 2023"]);
  expect(field("Folder").value).toBe("/home/ada");
  expect([button("gone").disabled, button("Fetch gone").disabled, button("out").disabled]).toEqual([true, true, false]);
});

test("a click goes into a folder, another one up, and another rank has other files", async () => {
  button("out").click();
  await settled();
  expect(client.files).toHaveBeenLastCalledWith(POOL.id, 0, "/home/ada/out");
  client.files.mockResolvedValue(folder("/", []));
  button("Folder above").click();
  await settled();
  expect(client.files).toHaveBeenLastCalledWith(POOL.id, 0, "/home");
  expect(view.node.textContent).toContain("This folder is empty.");
  field("Rank").value = "3";
  field("Rank").dispatchEvent(new Event("change"));
  await settled();
  expect(client.files).toHaveBeenLastCalledWith(POOL.id, 3, "/");
});

test("a large folder comes a part at a time", async () => {
  client.files.mockResolvedValue(folder("/many", [entry("a")], 1500));
  await view.go("/many");
  client.files.mockResolvedValue(folder("/many", [entry("b")]));
  button("Show more (1,500 left)").click();
  await settled();
  expect(client.files).toHaveBeenLastCalledWith(POOL.id, 0, "/many", "a");
  expect(rows()).toHaveLength(2);
});

test("what cannot be read is said, and what was shown stays", async () => {
  client.files.mockRejectedValue(new Error("/root: Permission denied (on rank 0)"));
  await view.go("/root");
  expect(view.node.querySelector("[role=alert]")?.textContent).toBe("/root: Permission denied (on rank 0)");
  expect(rows()).toHaveLength(3);
});

test("a late answer is not shown in the place of a later one's", async () => {
  let answer: (value: Folder) => void = () => undefined;
  client.files.mockReturnValueOnce(new Promise<Folder>((resolve) => (answer = resolve)));
  const slow = view.go("/slow");
  client.files.mockResolvedValue(folder("/fast", []));
  await view.go("/fast");
  answer(folder("/slow", []));
  await slow;
  expect(field("Folder").value).toBe("/fast");
});

test("a fetch shows how far it is, can be stopped, and says what came of it", async () => {
  vi.useFakeTimers();
  client.fetch.mockResolvedValue(fetched({ there: 1e6, total: 4e6 }));
  client.fetched.mockResolvedValueOnce(fetched({ there: 2e6, total: 4e6 }));
  client.fetched.mockResolvedValue(fetched({ state: "stopped", message: "it was stopped" }));
  button("Fetch log").click();
  await vi.advanceTimersByTimeAsync(0);
  expect(client.fetch).toHaveBeenCalledWith(POOL.id, 0, "/home/ada/log");
  expect(view.node.querySelector("li")?.textContent).toContain("log: 1.0 MB of 4.0 MB");
  await vi.advanceTimersByTimeAsync(500);
  expect(view.node.querySelector("progress")?.value).toBe(2e6);
  button("Stop the fetch of log").click();
  await vi.advanceTimersByTimeAsync(500);
  expect(client.fetched).toHaveBeenLastCalledWith(POOL.id, "f1", true);
  expect(told).toEqual([["it was stopped", false]]);
  expect(view.node.querySelector("li")).toBeNull();
  vi.useRealTimers();
});

test("a file is opened as text, a part at a time, and nothing in it runs", async () => {
  const text: Content = { kind: "text", size: 3e6, modified: 0, text: "\u001b[31m<img src=x>\u001b[0m\n", from: 0, next: 524288 };
  client.file.mockResolvedValue(text);
  button("log").click();
  const viewer = new FileViewer(opened[0]);
  await viewer.show();
  expect(viewer.node.querySelector("pre")?.textContent).toBe("<img src=x>\n");
  expect(viewer.node.textContent).toContain("0 B to 524.3 kB of 3.0 MB");
  const press = (name: string) => [...viewer.node.querySelectorAll("button")].find((one) => one.textContent === name)?.click();
  press("End");
  expect(client.file).toHaveBeenLastCalledWith(POOL.id, 0, "/home/ada/log", -524288);
  press("After");
  expect(client.file).toHaveBeenLastCalledWith(POOL.id, 0, "/home/ada/log", 524288);
});

test("a picture is a picture, and what is neither is said to be", async () => {
  client.file.mockResolvedValue({ kind: "image/svg+xml", size: 20, modified: 0, data: "<svg onload='x()'/>" });
  button("log").click();
  const viewer = new FileViewer(opened[0]);
  await viewer.show();
  expect(viewer.node.querySelector("img")?.src).toMatch(/^data:image\/svg/);
  client.file.mockResolvedValue({ kind: "other", size: 5e9, modified: 0 });
  await viewer.show();
  expect(viewer.node.querySelector("img")).toBeNull();
  expect(viewer.node.textContent).toContain("5.0 GB: neither text nor a picture");
  client.file.mockRejectedValue(new Error("it is gone"));
  await viewer.show();
  expect(viewer.node.textContent).toContain("it is gone");
});

test("an answer that is not as it should be is refused", () => {
  expect(() => readFolder({ path: "/", ranks: 1, entries: [{ name: 1 }], more: 0, last: "" })).toThrow("the list of files");
  expect(() => readContent({ kind: "text/html", size: 1, modified: 0, data: "<b>" })).toThrow("the file");
  expect([0, 999, 1000, 2_500_000, 3e15].map(size)).toEqual(["0 B", "999 B", "1.0 kB", "2.5 MB", "3000.0 TB"]);
});
