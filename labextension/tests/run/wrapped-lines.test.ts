import { describe, expect, it } from "vitest";

import { dress, pieces } from "../../src/run/wrapped-lines";
import { firstError } from "../../src/run/first-error";
import { clockTime, LineTimes } from "../../src/run/line-times";

const linesOf = (texts: string[], label = "") => ({
  first: 0,
  count: texts.length,
  line: (index: number) => ({ label, text: texts[index] }),
});
const all = (texts: string[], columns: number, label = "") => {
  const dressed = dress(linesOf(texts, label), { columns, times: false, marked: -1 });
  return Array.from({ length: dressed.count }, (_, row) => dressed.line(row));
};

describe("wrapped lines", () => {
  it("are cut at the width, and each row knows its line", () => {
    const long = "x".repeat(50);
    expect(all(["short", long, "", "end"], 20).map((line) => line.text)).toEqual([
      "short", "x".repeat(20), "x".repeat(20), "x".repeat(10), "", "end",
    ]);
    expect(dress(linesOf(["short", long, "end"]), { columns: 20, times: false, marked: -1 }).row(2)).toBe(4);
  });

  it("keep a row's label and its colours, and begin below each other", () => {
    const rows = all([`\x1b[31m${"r".repeat(30)}\x1b[0m`], 25, "0-1");
    expect(rows.map((line) => line.label)).toEqual(["0-1", "   "]);
    expect(rows.map((line) => line.text)).toEqual([`\x1b[31m${"r".repeat(20)}\x1b[0m`, `\x1b[31m${"r".repeat(10)}\x1b[0m`]);
  });

  it("count wide letters twice, and tabs up to the next eighth", () => {
    expect(pieces("漢".repeat(11), 20)).toEqual(["漢".repeat(10), "漢"]);
    expect(pieces("a\tb", 20)).toEqual(["a       b"]);
  });
});

describe("times of lines", () => {
  it("are those of the second in which they came; what was there before has none", () => {
    const times = new LineTimes();
    times.note(5, 100.2);
    times.note(7, 100.9);
    times.note(9, 103);
    expect([4, 5, 8, 9, 50].map((line) => times.of(line))).toEqual([undefined, 100.2, 100.2, 103, 103]);
    expect(clockTime(undefined)).toHaveLength(8);
    expect(clockTime(100)).toMatch(/^\d\d:\d\d:40$/);
    const dressed = dress({ ...linesOf(["a"]), line: () => ({ label: "", text: "a", time: 100 }) }, { columns: 0, times: true, marked: 0 });
    expect(dressed.line(0)).toMatchObject({ stamp: clockTime(100), marked: true });
  });
});

describe("the first error", () => {
  const found = (...texts: string[]) => firstError([{ key: {}, lines: linesOf(texts) }])?.index;

  it("is what Python raises, and what logs call one", () => {
    expect(found("loss 1", "Traceback (most recent call last):")).toBe(1);
    expect(found("a", "\x1b[31mValueError\x1b[0m: no data")).toBe(1);
    expect(found("torch.cuda.OutOfMemoryError: CUDA out of memory")).toBe(0);
    expect(found("INFO ok", "2026-11-23 ERROR worker lost")).toBe(1);
    expect(found("E1123 12:00:00 collective.cc:7] failed")).toBe(0);
  });

  it("is no word in passing", () => {
    expect(found("mean error 0.2", "no errors", "terror: a film")).toBeUndefined();
  });
});
