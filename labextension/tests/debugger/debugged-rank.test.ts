import { describe, expect, it } from "vitest";

import { DebuggerState } from "../../src/debugger/debugged-rank";
import { kernel } from "../state-kernel";

const ONE = { pool: "night", ranks: 2, rank: 1 };

describe("the state of the debugger", () => {
  it("is what the kernel answers, and later what it tells", async () => {
    const here = kernel(ONE, ["sky_debugger_request"]);
    let changes = 0;
    const state = new DebuggerState(() => changes++);
    state.follow(here.kernel);
    expect(state.texts.shown).toBe(false);
    await state.ask();
    expect(state.texts).toMatchObject({ shown: true, selected: 2 });
    expect(state.texts.entries).toEqual(["Debug: notebook", "Debug: rank 0", "Debug: rank 1"]);
    expect(state.texts.caption).toContain("pool night");
    here.tell("sky_debugger", { ...ONE, rank: null });
    expect(state.texts.selected).toBe(0);
    const before = changes;
    here.tell("sky_auto", ONE);
    expect(changes).toBe(before);
    here.tell("sky_debugger", { pool: null, ranks: 0, rank: null });
    expect(state.texts.shown).toBe(false);
  });

  it("is not shown where the kernel has no debugger, or restarts", async () => {
    const plain = kernel(ONE, ["sky_auto_request"]);
    const state = new DebuggerState(() => undefined);
    state.follow(plain.kernel);
    await state.ask();
    expect(state.texts.shown).toBe(false);
    const here = kernel(ONE, ["sky_debugger_request"]);
    state.follow(here.kernel);
    await state.ask();
    expect(state.texts.shown).toBe(true);
    here.end();
    expect(state.texts.shown).toBe(false);
  });

  it("sends what is selected, and throws what is refused", async () => {
    const here = kernel(ONE, ["sky_debugger_request"]);
    const state = new DebuggerState(() => undefined);
    state.follow(here.kernel);
    await state.ask();
    await state.select(1);
    expect(here.asked.at(-1)?.content).toEqual({ rank: 0, pool: "night" });
    await state.select(0);
    expect(here.asked.at(-1)?.content).toEqual({ rank: null });
    const refusing = kernel({ status: "error", message: "rank 1 has no debugpy" }, ["sky_debugger_request"]);
    state.follow(refusing.kernel);
    await expect(state.select(2)).rejects.toThrow("rank 1 has no debugpy");
  });

  it("does not trust what it is told", () => {
    const here = kernel({});
    const state = new DebuggerState(() => undefined);
    state.follow(here.kernel);
    here.tell("sky_debugger", { pool: 3, ranks: 1e9, rank: -1 });
    expect(state.texts.entries.length).toBe(4097);
    expect(state.texts.selected).toBe(0);
    here.tell("sky_debugger", { pool: "night", ranks: "many", rank: 1 });
    expect(state.texts.shown).toBe(false);
  });
});
