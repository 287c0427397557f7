import { describe, expect, it } from "vitest";

import type { Item } from "../../src/run/rank-output";
import { arrived, asText, type CommKernel, VIEW, widgetOf } from "../../src/run/widgets";
import { info } from "../kernels";

const item: Item = { data: { [VIEW]: { model_id: "a" }, "text/plain": "IntSlider(value=3)" }, metadata: {} };
const times = { byItself: 20, patience: 2000, pause: 5 };

/** A kernel connection that knows some comms, and answers who asks for others. */
class FakeKernel {
  clientId = "page";
  username = "";
  status = "busy";
  comms = new Map<string, { send: (...said: unknown[]) => unknown }>();
  _comms = this.comms;
  sent: { header: { msg_type: string }; content: Record<string, unknown>; buffers: unknown[] }[] = [];
  opened: { content: { comm_id: string }; buffers: unknown[]; header: { session: string } }[] = [];

  hasComm(id: string): boolean {
    return this.comms.has(id);
  }

  async _handleCommOpen(message: (typeof this.opened)[number]): Promise<void> {
    this.opened.push(message);
    this.comms.set(message.content.comm_id, { send: () => "waits" });
  }

  sendControlMessage(message: (typeof this.sent)[number]) {
    if (info(message)) {
      return { done: Promise.resolve(info(message)), dispose: () => undefined };
    }
    this.sent.push(message);
    const comms = ["layout", "a"].map((id, place) => ({ content: { comm_id: id }, metadata: {}, buffers: place + 1 }));
    const reply = { header: { session: "kernel" }, content: { status: "ok", comms }, buffers: ["1", "2", "3"] };
    return { done: Promise.resolve(reply), dispose: () => undefined };
  }
}

const as = (kernel: FakeKernel) => () => kernel as unknown as CommKernel;

describe("widgets of ranks", () => {
  it("are known by their view, and stand as text with the reason where they cannot be shown", () => {
    expect(widgetOf(item)).toBe("a");
    expect(widgetOf({ data: { "text/plain": "3" }, metadata: {} })).toBeUndefined();
    const text = asText(item, "not here");
    expect(text.data).toEqual({ "text/plain": "IntSlider(value=3)\nnot here" });
    expect(item.data[VIEW]).toBeDefined();
  });

  it("are waited for, as long as somebody wants them", async () => {
    const kernel = new FakeKernel();
    setTimeout(() => kernel.comms.set("a", { send: () => "natural" }), 10);
    expect(await arrived(as(kernel), "a", () => true, { ...times, byItself: 1500 })).toBe(true);
    expect(kernel.sent).toEqual([]);
    expect(await arrived(as(new FakeKernel()), "a", () => false, times)).toBe(false);
    expect(await arrived(() => undefined, "a", () => true, { ...times, patience: 30 })).toBe(false);
  });

  it("are asked for by a page that was not told, which opens them in order and answers by the same way", async () => {
    const kernel = new FakeKernel();
    expect(await arrived(as(kernel), "a", () => true, times)).toBe(true);
    expect(kernel.opened.map((one) => [one.content.comm_id, one.buffers])).toEqual([
      ["layout", ["1"]],
      ["a", ["2", "3"]],
    ]);
    // What is not of the kernel's session is passed over by JupyterLab.
    expect(kernel.opened[0].header.session).toBe("kernel");
    kernel.comms.get("a")?.send({ method: "update" }, {}, ["bytes"]);
    expect(kernel.sent.map((one) => one.header.msg_type)).toEqual(["sky_widgets_request", "sky_widgets_request"]);
    expect(kernel.sent[1].content).toEqual({ comm_id: "a", data: { method: "update" } });
    expect(kernel.sent[1].buffers).toEqual(["bytes"]);
  });
});
