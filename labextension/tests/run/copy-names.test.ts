import { describe, expect, it, vi } from "vitest";

import { copies, copyButton } from "../../src/run/copy-names";
import type { Host } from "../../src/run/display-context";

const NOTICE = "missing on rank 2, while the others have them: x; `%sky copy --to 2` copies them from another rank";

/** A host whose ranks lack names until they are copied. */
function host(lack: number[]): Host & { copyTo: ReturnType<typeof vi.fn> } {
  const copyTo = vi.fn(async () => {
    lack.length = 0;
    return "x: copied from rank 0 to rank 2";
  });
  return { draw: () => undefined, lacking: async () => [...lack], copyTo };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

describe("the button beside the notice of a death", () => {
  it("shows itself while the ranks lack names, and says what came of it", async () => {
    const here = host([2]);
    const node = copyButton(NOTICE, here)!;
    const button = node.querySelector("button")!;
    expect(button.hidden).toBe(true);
    await settled();
    expect(button.hidden).toBe(false);
    button.click();
    await settled();
    expect(here.copyTo).toHaveBeenCalledWith([2]);
    expect(node.textContent).toContain("x: copied from rank 0 to rank 2");
    expect(button.hidden).toBe(true);
  });

  it("is not there for other notices, for saved notebooks, and for ranks that lack nothing", async () => {
    expect(copyButton("rank 2 ended", host([2]))).toBeUndefined();
    expect(copyButton(NOTICE, { draw: () => undefined })).toBeUndefined();
    const node = copyButton(NOTICE, host([1]))!;
    await settled();
    expect(node.querySelector("button")!.hidden).toBe(true);
  });

  it("lets nothing into the line but numbers and the name of a pool", async () => {
    const lines: string[] = [];
    const kernel = {
      requestExecute: ({ code }: { code: string }) => {
        lines.push(code);
        return { done: Promise.resolve({ content: { status: "ok" } }), onIOPub: () => undefined };
      },
    };
    await copies(() => kernel as never, () => "night").copyTo([1, 2]);
    await copies(() => kernel as never, () => "x; import os").copyTo([1]);
    expect(lines).toEqual(["%sky copy --to 1,2 --name night", "%sky copy --to 1"]);
  });

  it("says why it was refused", async () => {
    const done = Promise.resolve({ content: { status: "error", evalue: "pool 'default' has ended" } });
    const kernel = { requestExecute: () => ({ done, onIOPub: () => undefined }) };
    await expect(copies(() => kernel as never, () => "default").copyTo([2])).rejects.toThrow("has ended");
  });
});
