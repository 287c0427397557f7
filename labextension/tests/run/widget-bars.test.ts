import { describe, expect, it, vi } from "vitest";

import type { Kernel } from "../../src/run/kernel-requests";
import { RunModel } from "../../src/run/model";
import { readDelta, readSnapshot } from "../../src/run/schema";
import { WidgetBars } from "../../src/run/widget-bars";
import { info } from "../kernels";

type Slot = (sender: unknown, message: never) => void;
const VIEW = "application/vnd.jupyter.widget-view+json";
const html = (value: string) => ({ _model_name: "HTMLModel", value });
const OPENINGS: [string, object][] = [
  ["left", html("train:  10%")],
  ["bar", { _model_name: "FloatProgressModel", value: 10, min: 0, max: 100, bar_style: "" }],
  ["right", html(" 10/100 [00:01&lt;00:09, 9.9it/s]")],
  ["box", { _model_name: "HBoxModel", children: ["IPY_MODEL_left", "IPY_MODEL_bar", "IPY_MODEL_right"] }],
];

function kernel(openings: [string, object][] = []) {
  const slots = new Set<Slot>();
  const sent: string[] = [];
  const stub = {
    clientId: "c", username: "", status: "busy",
    iopubMessage: { connect: (slot: Slot) => slots.add(slot) && true, disconnect: (slot: Slot) => slots.delete(slot) },
    sendControlMessage: (message: { header: { msg_type: string } }) => {
      sent.push(message.header.msg_type);
      const comms = openings.map(([id, state]) => ({ content: { comm_id: id, data: { state } }, metadata: {}, buffers: 0 }));
      return { done: Promise.resolve(info(message) ?? { content: { status: "ok", comms } }), dispose: () => undefined };
    },
  } as unknown as Kernel;
  const tell = (type: string, id: string, state: object) => {
    const message = { header: { msg_type: type }, content: { comm_id: id, data: { method: "update", state } } };
    slots.forEach((slot) => slot(undefined, message as never));
  };
  return { stub, tell, slots, sent };
}

describe("bars of widgets", () => {
  it("are those of tqdm's boxes, and move with them until they are full", () => {
    const { stub, tell, slots } = kernel();
    const changed = vi.fn();
    const bars = new WidgetBars(stub, changed);
    OPENINGS.forEach(([id, state]) => tell("comm_open", id, state));
    expect(bars.bar("box")).toEqual({ label: "train", done: 10, total: 100, aside: "00:01<00:09, 9.9it/s" });
    tell("comm_msg", "bar", { value: 43 });
    expect(changed).toHaveBeenCalledOnce();
    expect(bars.bar("box")?.done).toBe(43);
    tell("comm_msg", "bar", { value: 100, bar_style: "success" });
    expect(bars.bar("box")).toBeUndefined();
    bars.close();
    expect(slots.size).toBe(0);
  });

  it("are asked for once, where a page came after they were made", async () => {
    const { stub, sent } = kernel(OPENINGS);
    const changed = vi.fn();
    const bars = new WidgetBars(stub, changed);
    expect(bars.bar("box")).toBeUndefined();
    expect(bars.bar("box")).toBeUndefined();
    await vi.waitFor(() => expect(changed).toHaveBeenCalled());
    expect(bars.bar("box")?.done).toBe(10);
    expect(sent.filter((type) => type === "sky_widgets_request")).toHaveLength(1);
  });

  it("stand with the rank that shows them", () => {
    const model = new RunModel();
    model.widgetBar = (id) => (id === "box" ? { label: "train", done: 1, total: 4, aside: "" } : undefined);
    model.load(
      readSnapshot({
        version: 1, view: "v", title: "sky", state: "running", finished: false, elapsed: 0, idle: 0, items: [], order: [],
        notices: [], number: 0, ranks: [0, 1].map((rank) => ({ rank, state: "running", parts: [] })),
      }),
    );
    const item = { [VIEW]: { model_id: "box" }, "text/plain": "train" };
    model.apply(readDelta({ sky: "delta", view: "v", number: 1, entries: [["d", 1, null, item, {}]] }, 0), undefined);
    expect(model.ranks.map((rank) => rank.progress?.label)).toEqual([undefined, "train"]);
  });
});
