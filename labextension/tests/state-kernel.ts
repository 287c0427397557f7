type Slot = (sender: unknown, message: unknown) => void;

/** A kernel that knows these requests, and what it was asked. */
export function kernel(answer: Record<string, unknown>, features = ["sky_auto_request"]) {
  const asked: { type: string; content: unknown }[] = [];
  const slots = new Set<Slot>();
  const statuses = new Set<Slot>();
  const signal = (held: Set<Slot>) => ({
    connect: (slot: Slot) => (held.add(slot), true),
    disconnect: (slot: Slot) => held.delete(slot),
  });
  return {
    asked,
    slots,
    tell: (type: string, content: unknown, session = "first") =>
      slots.forEach((slot) => slot(null, { header: { msg_type: type, session }, content })),
    end: () => statuses.forEach((slot) => slot(null, "restarting")),
    kernel: {
      clientId: "c",
      username: "",
      status: "idle",
      connectionStatus: "connected",
      iopubMessage: signal(slots),
      statusChanged: signal(statuses),
      sendControlMessage: (message: { header: { msg_type: string }; content: unknown }) => {
        const type = message.header.msg_type;
        asked.push({ type, content: message.content });
        const content =
          type === "kernel_info_request" ? { status: "ok", supported_features: features } : { status: "ok", ...answer };
        return { done: Promise.resolve({ content }), dispose: () => undefined };
      },
    } as never,
  };
}
