import { describe, expect, it } from "vitest";

import { readReply, readSaved, readStatus } from "../../src/pool/schema";
import { readLog, readOutcome, readPools } from "../../src/pools/schema";
import { readLog as readPages, readOpened, readOpenings, readViews } from "../../src/run/schema";
import { node, pool } from "../pool/stub";

const EVIL = "<img src=x onerror=alert(1)>";
const row = (more: object = {}) => ({
  id: "a1b2",
  name: "train",
  provider: "local",
  nodes: 2,
  state: "ready",
  keep: false,
  began: 1,
  manager: null,
  here: true,
  running: [],
  cost: null,
  ...more,
});

describe("an answer of the server", () => {
  it.each([
    ["an id that leads elsewhere", { id: "../../api/shutdown?" }],
    ["a name that is code behind a magic", { name: "x\n!touch /tmp/x" }],
    ["a name that is markup", { name: EVIL }],
    ["nodes that are markup", { nodes: EVIL }],
    ["a cost that is markup", { cost: EVIL }],
    ["a manager that is a text", { manager: EVIL }],
    ["runs that are none", { running: EVIL }],
  ])("is refused with %s", (_, more) => {
    expect(readPools({ pools: [row()] }).length).toBe(1);
    expect(() => readPools({ pools: [row(), row(more)] })).toThrow("the server's answer");
  });

  it("is refused where it is none", () => {
    for (const answer of [null, EVIL, [], {}, { pools: {} }, { run: {}, ranks: [] }, { message: { toString: EVIL } }]) {
      expect(() => readPools(answer)).toThrow();
      expect(() => readLog(answer)).toThrow();
    }
    expect(() => readOutcome({ message: [EVIL] })).toThrow();
  });
});

describe("an answer of the kernel", () => {
  it("is refused where a pool is not as it should be", () => {
    expect(readStatus({ pools: [pool()] })[0].name).toBe("train");
    for (const more of [{ name: 1 }, { nodes: [node(0, { samples: [[EVIL]] as never })] }, { away: { host: [] } }, { cost: EVIL }]) {
      expect(() => readStatus({ pools: [pool(more as never)] })).toThrow("the kernel's answer");
      expect(() => readSaved({ version: 1, at: 0, pools: [pool(more as never)] })).toThrow("what is saved of these pools");
    }
    expect(() => readSaved({ version: 1, at: 0, pools: [] })).toThrow("there is no pool");
    expect(() => readReply({ message: 7 })).toThrow();
  });

  it("is refused where a run's is not", () => {
    expect(() => readOpened({ run: { version: 1, ranks: EVIL } })).toThrow();
    expect(() => readOpened({ bundle: { "text/html": EVIL } })).toThrow("it holds no run");
    expect(() => readViews({ views: [{ view: "v", cell: {}, live: true }] })).toThrow();
    expect(() => readPages({ nodes: [{ from: 0, next: -1, end: 0 }] })).toThrow();
    expect(() => readPages({ nodes: [{ from: 0, next: 1, end: 1, events: [{ kind: "display", data: EVIL }] }] })).toThrow();
    expect(() => readOpenings({ comms: [{ content: { comm_id: 1 }, metadata: {}, buffers: 0 }] })).toThrow();
  });
});
