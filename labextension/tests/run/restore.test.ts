import { describe, expect, it } from "vitest";

import { MIME } from "../../src/run/model";
import { restore } from "../../src/run/restore";
import { info } from "../kernels";

interface Output {
  data: Record<string, unknown>;
}

/** A notebook of one cell, which was saved with these outputs, and a kernel that knows these views of it. */
async function opened(saved: Output[], views: { view: string; live: boolean }[], source = "%%sky\n1"): Promise<unknown[]> {
  const outputs = [...saved];
  const kernel = {
    connectionStatus: "connected",
    sendControlMessage: (message: { header: { msg_type: string }; content: { action: string; view: string } }) => {
      if (info(message)) {
        return { done: Promise.resolve(info(message)), dispose: () => undefined };
      }
      const { action, view } = message.content;
      const content =
        action === "views"
          ? { status: "ok", views: views.map((one) => ({ ...one, cell: "c1" })) }
          : { status: "ok", bundle: { [MIME]: { view }, "text/plain": `run of ${view}` } };
      return { done: Promise.resolve({ content }), dispose: () => undefined };
    },
  };
  const model = {
    id: "c1",
    type: "code",
    sharedModel: { getSource: () => source },
    outputs: {
      get length() {
        return outputs.length;
      },
      get: (index: number) => outputs[index],
      add: (output: Output) => outputs.push(output),
      clear: () => (outputs.length = 0),
    },
  };
  const panel = {
    isDisposed: false,
    context: { ready: Promise.resolve() },
    sessionContext: { session: { kernel } },
    content: { widgets: [{ model }] },
  };
  await restore(panel as never);
  return outputs.map((one) => one.data["text/plain"]);
}

const run = (view: string): Output => ({ data: { [MIME]: { view }, "text/plain": `saved ${view}` } });
const line: Output = { data: { "text/plain": "2 local nodes ready" } };

describe("restore", () => {
  it("puts back runs that the notebook was not saved with, whether they go on or not", async () => {
    expect(await opened([], [{ view: "a", live: true }])).toEqual(["run of a"]);
    expect(await opened([], [{ view: "a", live: false }, { view: "b", live: true }])).toEqual(["run of a", "run of b"]);
  });

  it("puts a run below what its cell showed before it", async () => {
    expect(await opened([line], [{ view: "a", live: false }])).toEqual(["2 local nodes ready", "run of a"]);
  });

  it("leaves a run that is there as it is", async () => {
    expect(await opened([line, run("a")], [{ view: "a", live: false }])).toEqual(["2 local nodes ready", "saved a"]);
  });

  it("puts a run in the place of one that its cell made before", async () => {
    expect(await opened([line, run("old")], [{ view: "a", live: false }])).toEqual(["run of a"]);
    expect(await opened([line, run("old")], [])).toEqual(["2 local nodes ready", "saved old"]);
  });

  it("asks no kernel of a notebook that has no cell of ours", async () => {
    expect(await opened([], [{ view: "a", live: true }], "1 + 1")).toEqual([]);
  });
});
