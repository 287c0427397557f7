import { describe, expect, it } from "vitest";

import { afterKernel, afterSaving } from "../../src/run/last-words";
import type { Snapshot } from "../../src/run/schema";

const said = (outliving: Snapshot["outliving"], status: string) => afterKernel("gpu", outliving, status);

describe("what is said of a run whose kernel has ended", () => {
  it("is that the pool ended too, where it is local and not kept", () => {
    expect(said(undefined, "autorestarting")).toEqual(["The notebook's kernel died; the pool ended with it.", "stopped"]);
    expect(said(undefined, "restarting")[0]).toContain("kernel has been restarted; the pool ended with it");
    expect(said(undefined, "terminating")[0]).toContain("kernel has been shut down;");
    expect(said(undefined, "dead")[0]).toContain("kernel has ended;");
  });

  it("is that a kept pool's run continues, or is shown by who attaches to it", () => {
    const [died, fate] = said({ how: "kept", lease: 43200 }, "autorestarting");
    expect(died).toContain("died; the run continues on the nodes of pool gpu: `%sky attach gpu` takes it up");
    expect(fate).toBe("continues");
    expect(said({ how: "kept", lease: 43200 }, "restarting")[1]).toBe("unknown");
  });

  it("names the lease of a pool of other machines that is not kept", () => {
    const lease = { how: "lease", lease: 1800 } as const;
    const [died, fate] = said(lease, "autorestarting");
    expect(died).toContain("the run continues on the nodes of pool gpu");
    expect(died).toContain("Unless a notebook attaches to it, the pool ends with its lease, at most 30 min after its last run.");
    expect(fate).toBe("continues");
    const [shut, unknown] = said(lease, "restarting");
    expect(shut).toContain("it ended the pool if it had the time. Otherwise the pool ends with its lease, at most 30 min");
    expect(unknown).toBe("unknown");
  });

  it("promises a guest no pool that is its own", () => {
    for (const status of ["autorestarting", "restarting"]) {
      const [text] = said({ how: "joined" }, status);
      expect(text).not.toContain("attach");
      expect(text).toContain("`sky-jupyter logs -f gpu`");
    }
  });
});

describe("what is said of a run that was saved while it went on", () => {
  const saved = (more: Partial<Snapshot>) => afterSaving({ pool: "gpu", ...more } as Snapshot, "does not answer");

  it("is where its output stops, and never how it ended", () => {
    expect(saved({})).toBe(
      "This notebook was saved while the run went on, and its kernel does not answer: its output stops there.",
    );
    expect(saved({ run: "ab12" })).toContain("`%sky logs ab12` shows the rest if the pool is still running.");
  });

  it("names the way to the run of a pool that may still be running", () => {
    expect(saved({ run: "ab12", outliving: { how: "kept" } })).toContain(
      "`%sky attach gpu` shows the run if the pool is still running; then `%sky logs ab12` has it too.",
    );
    expect(saved({ outliving: { how: "joined" } })).not.toContain("attach");
  });
});
