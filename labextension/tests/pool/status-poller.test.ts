import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { PoolModel } from "../../src/pool/model";
import { type Ask, StatusPoller } from "../../src/pool/status-poller";
import { pointsOf } from "../../src/pool/sparkline";
import { node, pool } from "./stub";
import { Refusal } from "../../src/run/kernel-requests";

beforeEach(() => {
  vi.useFakeTimers();
  vi.setSystemTime(1_000_000);
});
afterEach(() => vi.useRealTimers());

/** A kernel that gives these answers one after another, the last again and again. */
function kernel(...answers: unknown[]) {
  const asked: Record<string, unknown>[] = [];
  const ask = async (content: Record<string, unknown>) => {
    asked.push(content);
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer instanceof Error) {
      throw answer;
    }
    return { status: "ok", pools: answer };
  };
  return { ask: ask as Ask, asked };
}

describe("a pool that is looked at", () => {
  it("is asked once a second, for what is new since the last answer", async () => {
    const { ask, asked } = kernel([pool({ mark: 10 })], [pool({ mark: 20 })], [pool({ mark: 30 })]);
    const feed = new StatusPoller(ask, "train");
    const heard = vi.fn();
    feed.watch(heard);
    await vi.advanceTimersByTimeAsync(2100);
    expect(asked).toEqual([
      { action: "status", pool: "train", since: 0, lines: 100 },
      { action: "status", pool: "train", since: 10 },
      { action: "status", pool: "train", since: 20 },
    ]);
    expect(heard).toHaveBeenCalledTimes(3);
  });

  it("is not asked once nobody looks, and by one asker where several do", async () => {
    const { ask, asked } = kernel([pool()]);
    const feed = new StatusPoller(ask, "train");
    const [one, other] = [feed.watch(() => undefined), feed.watch(() => undefined)];
    await vi.advanceTimersByTimeAsync(1100);
    expect(asked.length).toBe(2);
    one();
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked.length).toBe(3);
    other();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked.length).toBe(3);
  });

  it("is asked for all lines while its nodes are made", async () => {
    const on = { phase: "environment", text: "", state: "on", at: 1, elapsed: 1, usual: null, lines: [], nodes: [] };
    const { ask, asked } = kernel([pool({ state: "starting", phases: [on] })], [pool()]);
    new StatusPoller(ask, "train").watch(() => undefined);
    await vi.advanceTimersByTimeAsync(2100);
    expect(asked.map((content) => content.lines)).toEqual([100, 100, undefined]);
  });

  it("has ended when the kernel knows of others only, and is left alone then", async () => {
    const { ask, asked } = kernel([pool()], new Refusal("there is no pool 'train'"), [pool({ name: "other" })]);
    const feed = new StatusPoller(ask, "train");
    feed.watch(() => undefined);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(feed.gone).toBe(true);
    expect(feed.model?.facts.name).toBe("train");
    expect(asked.length).toBe(3);
  });

  it("is asked less and less often where nothing answers, and as before when it does", async () => {
    const { ask, asked } = kernel(new Error("lost"), new Error("lost"), [pool()]);
    const feed = new StatusPoller(ask, "train");
    feed.watch(() => undefined);
    await vi.advanceTimersByTimeAsync(4000);
    expect([feed.problem, feed.gone, asked.length]).toEqual(["lost", false, 1]);
    await vi.advanceTimersByTimeAsync(2000);
    expect(asked.length).toBe(2);
    await vi.advanceTimersByTimeAsync(12_000);
    expect(feed.problem).toBe("");
    expect(asked.length).toBeGreaterThan(3);
  });

  it("is another one when its name has been given anew", async () => {
    const { ask, asked } = kernel([pool({ mark: 10 })], [pool({ id: "b2", mark: 20 })]);
    const feed = new StatusPoller(ask, "train");
    feed.watch(() => undefined);
    await vi.advanceTimersByTimeAsync(1100);
    expect(feed.model?.facts.id).toBe("b2");
    expect(asked[2].since).toBe(0);
  });
});

describe("what is kept of a pool", () => {
  it("are the samples of the last five minutes, by node", () => {
    const model = new PoolModel(pool({ nodes: [node(0, { samples: [[1, 0.1, 1], [0, 0.2, 2]] }), node(1)] }), 1000);
    model.take(pool({ nodes: [node(0, { samples: [[0.5, 0.3, 3]] })] }), 1299.7, false);
    expect(model.samples.get(0)).toEqual([[1000, 0.2, 2], [1299.2, 0.3, 3]]);
    expect(model.samples.has(1)).toBe(false);
  });

  it("are all lines of phases that are over, though later answers have a few", () => {
    const done = { phase: "files", text: "", state: "done", at: 5, elapsed: 2, usual: null };
    const parts = [{ node: 0, state: "done", elapsed: 1, line: "" }];
    const model = new PoolModel(pool({ phases: [{ ...done, lines: ["a", "b", "c", "d"], nodes: parts }] }), 1);
    model.take(pool({ phases: [{ ...done, lines: ["d"], nodes: [] }] }), 2, false);
    expect(model.facts.phases[0]).toMatchObject({ lines: ["a", "b", "c", "d"], nodes: parts });
  });

  it("is drawn with the newest at the right, and the mean of what falls together", () => {
    expect(pointsOf([[700, 0], [1000, 1]], 1000)).toEqual([[0, 15], [100, 1]]);
    expect(pointsOf([[940, 0], [999.9, 0], [1000, 1]], 1000)).toEqual([[0, 15], [100, 8]]);
    expect(pointsOf([], 1000)).toEqual([]);
  });
});
