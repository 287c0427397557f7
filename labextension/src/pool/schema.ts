/** Pools as notebooks keep them, display/notebook/pool_panel.py, and as `status` tells of them (docs/actions.md). */
import * as v from "valibot";

import { number, read, text, whole } from "../page/validate";
import { cost } from "../page/cost";

export const MIME = "application/vnd.sky.pool.v1+json";

// Of five minutes, of a node with 64 GPUs.
const MOST_SAMPLES = 1000;
const sample = v.pipe(v.array(number), v.minLength(1));

const rank = v.object({ rank: whole, pid: whole, run: v.nullable(text), entered: v.boolean(), memory: number });
const node = v.object({
  node: whole,
  state: text,
  host: text,
  address: text,
  uptime: number,
  pid: whole,
  accelerators: whole,
  accelerator: v.nullable(text),
  ranks: v.array(rank),
  cores: number,
  memory: number,
  gpus: v.array(v.object({ name: text, memory: number })),
  heard: v.nullable(number),
  now: v.nullable(v.array(number)),
  /** Each is seconds ago, the busy part of the cores, bytes of memory used, and of each GPU its busy part and memory. */
  samples: v.pipe(v.array(sample), v.maxLength(MOST_SAMPLES)),
});
const part = v.object({ node: whole, state: text, elapsed: number, line: text });
const phase = v.object({
  phase: text,
  text,
  state: text,
  at: number,
  elapsed: number,
  usual: v.nullable(number),
  lines: v.array(text),
  nodes: v.optional(v.array(part)),
});
const run = v.object({
  id: text,
  /** Its code in a line; kernels of before have none. */
  title: v.optional(text, ""),
  count: number,
  elapsed: number,
  silent: number,
  ranks: v.array(whole),
  left: v.array(whole),
  failed: v.array(whole),
  interrupted: v.boolean(),
  timed_out: v.optional(v.boolean()),
  detached: v.boolean(),
});
const pool = v.object({
  name: text,
  id: text,
  state: text,
  why: text,
  current: v.optional(v.boolean()),
  provider: text,
  ranks_per_node: whole,
  world_size: whole,
  plugins: v.array(text),
  keep: v.boolean(),
  uptime: number,
  away: v.record(text, text),
  apart: v.record(text, text),
  runs: v.array(run),
  phases: v.array(phase),
  nodes: v.array(node),
  mark: number,
  /** How long a scheduler gives its machines. */
  remaining: v.optional(text),
  /** Where machines are bought. */
  cost: v.nullish(cost),
});
const saved = v.pipe(
  v.object({
    version: v.literal(1),
    /** Seconds since 1970. */
    at: number,
    pools: v.array(pool),
    /** A pool that is being started: its name, and what it is at. */
    start: v.optional(v.object({ pool: text, text })),
  }),
  v.check(({ pools, start }) => pools.length > 0 || start !== undefined, "there is no pool"),
);
const reply = v.object({
  message: v.optional(text),
  /** False where it has been begun, and goes on. */
  done: v.optional(v.boolean()),
});

const name = v.object({
  name: text,
  type: text,
  /** These are texts; empty where there is nothing to say. They tell where ranks differ. */
  value: text,
  shape: text,
  dtype: text,
  device: text,
  size: text,
  origin: text,
  note: text,
  /** What it is sorted by: the most bytes of a rank, and a value or a number of items. */
  bytes: v.nullable(number),
  magnitude: v.nullable(number),
  /** Seconds since 1970. */
  when: v.nullable(number),
});
const names = v.object({ names: v.array(name), notes: v.array(text) });

export type NameFacts = v.InferOutput<typeof name>;
export type NamesReply = v.InferOutput<typeof names>;
export type Sample = v.InferOutput<typeof sample>;
export type RankFacts = v.InferOutput<typeof rank>;
export type NodeFacts = v.InferOutput<typeof node>;
export type PartFacts = v.InferOutput<typeof part>;
export type PhaseFacts = v.InferOutput<typeof phase>;
export type RunFacts = v.InferOutput<typeof run>;
export type PoolFacts = v.InferOutput<typeof pool>;
/** What a notebook keeps of its pools. */
export type Saved = v.InferOutput<typeof saved>;
export type Reply = v.InferOutput<typeof reply>;

const status = v.object({ pools: v.array(pool) });

export const readSaved = (value: unknown) => read(saved, value, "what is saved of these pools");
export const readStatus = (value: unknown) => read(status, value, "the kernel's answer").pools;
export const readNames = (value: unknown) => read(names, value, "the kernel's answer");
export const readReply = (value: unknown) => read(reply, value, "the kernel's answer");
