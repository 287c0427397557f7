import { describe, expect, it } from "vitest";

import { type Kernel, Subscription } from "../../src/run/kernel-requests";
import { readDelta, readSnapshot } from "../../src/run/schema";
import widget from "../../src/widgets/run";
import { info } from "../kernels";

const EVIL = "<img src=x onerror=alert(1)>";

const rank = (more: object = {}) => ({ rank: 0, state: "done", parts: [], ...more });
const run = (more: object = {}) => ({
  version: 1,
  view: "v",
  title: "t",
  state: "done",
  finished: true,
  elapsed: 1,
  idle: 0,
  ranks: [rank(), rank({ rank: 1 })],
  items: [],
  order: [],
  notices: [],
  ...more,
});
const delta = (...entries: unknown[]) => ({ sky: "delta", view: "v", number: 1, entries });

describe("a saved run", () => {
  it.each([
    ["a rank that is markup", { ranks: [rank({ rank: EVIL })] }],
    ["a rank that is no whole number", { ranks: [rank({ rank: 0.5 })] }],
    ["a rank twice", { ranks: [rank(), rank()] }],
    ["a state that there is not", { ranks: [rank({ state: EVIL })] }],
    ["an item that is not there", { ranks: [rank({ parts: [{ item: 3 }] })] }],
    ["a result that is not there", { ranks: [rank({ result: 0 })] }],
    ["an item without data", { items: [{ metadata: {} }] }],
    ["a time that is no number", { elapsed: EVIL }],
    ["a time without end", { elapsed: Infinity }],
    ["an order of texts", { order: [EVIL] }],
    ["no ranks", { ranks: undefined }],
    ["another version", { version: 2 }],
  ])("is refused with %s", (_, more) => {
    expect(() => readSnapshot(run(more))).toThrow("this run is not as it should be");
  });

  it("has nothing that its schema does not name", () => {
    const read = readSnapshot({ ...run(), ...JSON.parse(`{"__proto__": {"evil": 1}, "more": 1}`) });
    expect(Object.keys(read)).not.toContain("more");
    expect((read as unknown as { evil?: number }).evil).toBeUndefined();
  });

  it.each([
    [run({ ranks: [rank({ rank: EVIL })] }), "This run is not as it should be (ranks.0.rank: expected number). It is shown as text."],
    [run({ version: 7 }), "This run was saved by another version of Sky Jupyter"],
  ])("that is refused is said in a line of text", (snapshot, told) => {
    const el = document.createElement("div");
    document.body.replaceChildren(el);
    const model = { get: () => snapshot, on: () => undefined, off: () => undefined, send: () => undefined };
    widget().render({ model, el });
    expect(el.textContent).toContain(told);
    expect(el.querySelector("img, .sky-run")).toBeNull();
  });
});

describe("a delta", () => {
  it.each([
    ["an entry of no known kind", ["x", 0]],
    ["an entry of an object's own name", ["constructor", 0]],
    ["a text of which it says no size", ["s", 0, 0, EVIL, 0, -1]],
    ["an item that is a text", ["d", 0, null, EVIL, {}]],
    ["an end that says too little", ["e", 0, { state: "done" }]],
    ["an entry that is none", EVIL],
  ])("is refused with %s", (_, entry) => {
    expect(() => readDelta(delta(entry), 100)).toThrow("what the kernel told of a run");
  });

  it("that does not fit is asked for anew with all that is there", async () => {
    const asked: unknown[] = [];
    let hear: (sender: unknown, message: never) => void = () => undefined;
    const kernel: Kernel = {
      clientId: "c",
      username: "",
      status: "busy",
      iopubMessage: {
        connect: (slot: typeof hear) => {
          hear = slot;
          return true;
        },
        disconnect: () => true,
      },
      sendControlMessage: (message: { header: { msg_type: string }; content: unknown }) => {
        if (info(message)) {
          return { done: Promise.resolve(info(message)), dispose: () => undefined };
        }
        asked.push(message.content);
        return { done: Promise.resolve({ content: { status: "ok", run: run({ number: asked.length }) } }), dispose: () => undefined };
      },
    } as never;
    const loaded: unknown[] = [];
    const taken: unknown[] = [];
    const subscription = new Subscription(
      kernel,
      "v",
      (snapshot) => loaded.push(snapshot.number),
      (found) => taken.push(found.number) > 0,
      () => undefined,
    );
    await subscription.open();
    const tell = (content: unknown) => hear(null, { header: { msg_type: "comm_msg" }, content: { data: { content } } } as never);
    tell(delta(["d", EVIL, null, {}, {}]));
    await new Promise((resolve) => setTimeout(resolve));
    expect([asked.length, loaded, taken]).toEqual([2, [1, 2], []]);
    tell({ ...delta(["n", "note"]), number: 3 });
    expect(taken).toEqual([3]);
  });
});
