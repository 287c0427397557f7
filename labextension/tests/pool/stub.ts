// Pools as `status` tells of them, for tests.
import type { NodeFacts, PoolFacts } from "../../src/pool/model";

export const GB = 1e9;

export function node(number: number, more: Partial<NodeFacts> = {}): NodeFacts {
  return {
    node: number,
    state: "idle",
    host: "",
    address: `10.0.0.${number}`,
    uptime: 65,
    pid: 7,
    accelerators: 0,
    accelerator: null,
    ranks: [{ rank: number, pid: 70 + number, run: null, entered: true, memory: 48e6 }],
    cores: 8,
    memory: 16 * GB,
    gpus: [],
    heard: 0,
    now: [0.5, 4 * GB],
    samples: [[0, 0.5, 4 * GB]],
    ...more,
  };
}

export function pool(more: Partial<PoolFacts> = {}): PoolFacts {
  const nodes = more.nodes ?? [node(0), node(1)];
  return {
    name: "train",
    id: "a1",
    state: "ready",
    why: "",
    current: true,
    provider: "local",
    ranks_per_node: 1,
    world_size: nodes.length,
    plugins: [],
    keep: false,
    uptime: 125,
    away: {},
    apart: {},
    runs: [],
    phases: [],
    nodes,
    mark: 1000,
    ...more,
  };
}

export const RUN = {
  id: "abc",
  count: 3,
  elapsed: 12.4,
  silent: 3.2,
  ranks: [0, 1],
  left: [1],
  failed: [],
  interrupted: false,
  title: "train(data)",
  detached: false,
};
