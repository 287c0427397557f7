import { describe, expect, it } from "vitest";

import { answerWhileBusy, type TypingKernel } from "../../src/completion/typing-requests";
import { kernel as made } from "../state-kernel";

const CONTENT = { code: "%%sky\nlo", cursor_pos: 8 };
const FEATURES = ["sky_complete_request", "sky_inspect_request"];

/** A kernel with Jupyter's own requests, whose answers say that they are. */
function kernel(answer: Record<string, unknown>, features = FEATURES) {
  const { asked, kernel } = made(answer, features);
  const plain = async () => ({ content: { status: "ok", own: true } });
  const found = Object.assign(kernel as object, { requestComplete: plain, requestInspect: plain, status: "busy" });
  return { asked, plain, kernel: found as unknown as TypingKernel & { status: string } };
}

describe("a kernel whose cell runs", () => {
  it("is asked on its control channel", async () => {
    const { asked, kernel: busy } = kernel({ found: true, matches: ["loss"] });
    answerWhileBusy(busy, () => true);
    expect((await busy.requestComplete(CONTENT)).content).toMatchObject({ matches: ["loss"] });
    expect((await busy.requestInspect(CONTENT)).content).toMatchObject({ found: true });
    expect(asked.map(({ type }) => type).filter((type) => type.startsWith("sky_"))).toEqual(FEATURES);
    expect(asked.at(-1)?.content).toEqual(CONTENT);
  });

  it("answers by itself where nothing is found, and where it does not know the request", async () => {
    const { kernel: empty } = kernel({ found: false });
    answerWhileBusy(empty, () => true);
    expect((await empty.requestComplete(CONTENT)).content).toMatchObject({ own: true });
    const { kernel: other } = kernel({}, []);
    answerWhileBusy(other, () => true);
    expect((await other.requestInspect(CONTENT)).content).toMatchObject({ own: true });
  });

  it("is asked nothing of ours while it is idle, and in notebooks without cells of ours", async () => {
    const { asked, kernel: idle } = kernel({ found: true });
    let concerns = true;
    answerWhileBusy(idle, () => concerns);
    idle.status = "idle";
    expect((await idle.requestComplete(CONTENT)).content).toMatchObject({ own: true });
    idle.status = "busy";
    concerns = false;
    expect((await idle.requestComplete(CONTENT)).content).toMatchObject({ own: true });
    expect(asked).toEqual([]);
  });

  it("has its own requests again afterwards", () => {
    const { plain, kernel: busy } = kernel({ found: true });
    answerWhileBusy(busy, () => true)();
    expect(busy.requestComplete).toBe(plain);
    expect(busy.requestInspect).toBe(plain);
  });
});
