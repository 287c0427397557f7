import { describe, expect, it } from "vitest";

import { readRunEnd, textOf } from "../../src/run/run-end";

const END = { run: "ab12", pool: "train", title: "fit(model)", count: 7, state: "ok", failed: "", elapsed: 7384.2 };

describe("the end of a run", () => {
  it("is told with its cell, how it ended, and how long it took", () => {
    expect(textOf(readRunEnd(END)!)).toBe("In[7] fit(model) is done after 2 h 3 min (pool train)");
    const failed = readRunEnd({ ...END, count: 0, state: "failed", failed: "ranks 0-3", elapsed: 61 })!;
    expect(textOf(failed)).toBe("fit(model) has failed on ranks 0-3 after 1 min (pool train)");
    const late = readRunEnd({ ...END, state: "timed out", failed: "rank 1" })!;
    expect(textOf(late)).toBe("In[7] fit(model) has timed out on rank 1 after 2 h 3 min (pool train)");
  });

  it("is not told where a kernel says it otherwise", () => {
    for (const odd of [undefined, null, "x", {}, { ...END, elapsed: -1 }, { ...END, run: 3 }]) {
      expect(readRunEnd(odd)).toBeUndefined();
    }
    expect(readRunEnd({ ...END, title: "x".repeat(10_000) })!.title).toHaveLength(200);
  });
});
