import { expect, it } from "vitest";

import { ask, type Kernel, Refusal } from "../../src/run/kernel-requests";

/** A kernel that says that it has these features, and what it has been asked. */
function kernel(features: string[]): { kernel: Kernel; asked: string[]; say: (status: string) => void } {
  const asked: string[] = [];
  const slots = new Set<(sender: unknown, status: string) => void>();
  const one = {
    clientId: "c",
    statusChanged: {
      connect: (slot: (sender: unknown, status: string) => void) => slots.add(slot),
      disconnect: (slot: (sender: unknown, status: string) => void) => slots.delete(slot),
    },
    sendControlMessage: (message: { header: { msg_type: string } }) => {
      asked.push(message.header.msg_type);
      return { done: Promise.resolve({ content: { status: "ok", supported_features: [...features] } }), dispose: () => undefined };
    },
  };
  return { kernel: one as never, asked, say: (status) => slots.forEach((slot) => slot(null, status)) };
}

it("is asked what it says that it knows, and said so once", async () => {
  const { kernel: one, asked, say } = kernel(["sky_request"]);
  await Promise.all([ask(one, "sky_request", {}), ask(one, "sky_request", {})]);
  expect(asked).toEqual(["kernel_info_request", "sky_request", "sky_request"]);
  say("autorestarting");
  await ask(one, "sky_request", {});
  expect(asked.slice(3)).toEqual(["kernel_info_request", "sky_request"]);
});

it("is not asked what it does not know, until it does", async () => {
  const features: string[] = [];
  const { kernel: one, asked } = kernel(features);
  await expect(ask(one, "sky_request", {})).rejects.toThrow(Refusal);
  expect(asked).toEqual(["kernel_info_request"]);
  features.push("sky_request");
  await ask(one, "sky_request", {});
  expect(asked.slice(1)).toEqual(["kernel_info_request", "sky_request"]);
});
