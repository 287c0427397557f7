import { describe, expect, it } from "vitest";

import { AutoState } from "../../src/auto/auto-state";
import { kernel } from "../state-kernel";

const ON = { on: true, live: true, pool: "night", options: "--on head" };

describe("the state of auto", () => {
  it("is what the kernel answers, and later what it tells", async () => {
    const here = kernel(ON);
    let changes = 0;
    const state = new AutoState(() => changes++);
    state.follow(here.kernel);
    expect(state.texts.shown).toBe(false);
    await state.ask();
    expect(state.texts).toMatchObject({ shown: true, label: "Cells on night" });
    expect(state.texts.caption).toContain("%%sky --on head");
    here.tell("sky_auto", { on: true, live: false, pool: "night" });
    expect(state.texts.label).toBe("Pool night has ended");
    const before = changes;
    here.tell("status", { on: false });
    expect(changes).toBe(before);
  });

  it("asks nothing of a kernel without the extension but what it knows", async () => {
    const plain = kernel(ON, []);
    const state = new AutoState(() => undefined);
    state.follow(plain.kernel);
    await state.ask();
    expect(plain.asked.map((one) => one.type)).toEqual(["kernel_info_request"]);
    expect(state.texts.shown).toBe(false);
  });

  it("is off in a kernel that restarts, and follows one kernel at a time", async () => {
    const [first, second] = [kernel(ON), kernel(ON)];
    const state = new AutoState(() => undefined);
    state.follow(first.kernel);
    await state.ask();
    first.end();
    expect(state.on).toBe(false);
    state.follow(second.kernel);
    expect(first.slots.size).toBe(0);
    state.follow(undefined);
    expect(second.slots.size).toBe(0);
  });

  it("is not what an ending process still tells", async () => {
    const here = kernel(ON);
    const state = new AutoState(() => undefined);
    state.follow(here.kernel);
    here.tell("sky_auto", ON);
    here.end();
    here.tell("sky_auto", { ...ON, live: false });
    expect(state.texts.shown).toBe(false);
    here.tell("sky_auto", ON, "second");
    expect(state.texts.shown).toBe(true);
  });

  it("sends what is switched, and throws what is refused", async () => {
    const here = kernel({ status: "error", message: "there is no pool" });
    const state = new AutoState(() => undefined);
    state.follow(here.kernel);
    await expect(state.turn(true)).rejects.toThrow("there is no pool");
    expect(here.asked.at(-1)).toEqual({ type: "sky_auto_request", content: { on: true } });
  });
});
