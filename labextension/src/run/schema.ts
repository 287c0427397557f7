/** A run as notebooks keep it and kernels tell it: what display/model/saved_output.py and display/notebook/deltas.py make (docs/view.md). */
import * as v from "valibot";

import { Misfit, number, read, record, text, whole } from "../page/validate";
import { cost } from "../page/cost";

export const MIME = "application/vnd.sky.run.v1+json";

const state = v.picklist(["running", "done", "failed", "died", "timed out", "interrupted"]);
export type State = v.InferOutput<typeof state>;

export const item = v.object({ data: record, metadata: record });

const part = v.object({ text: v.optional(text), item: v.optional(whole), ids: v.optional(v.array(text)) });
const rank = v.object({
  rank: whole,
  state,
  parts: v.array(part),
  dropped: v.optional(whole),
  stream: v.optional(text),
  next: v.optional(whole),
  note: v.optional(text),
  traceback: v.optional(text),
  result: v.optional(whole),
});
const snapshot = v.pipe(
  v.object({
    version: v.literal(1),
    view: text,
    run: v.optional(text),
    pool: v.optional(text),
    title: text,
    state,
    finished: v.boolean(),
    elapsed: number,
    idle: number,
    ranks: v.array(rank),
    items: v.array(item),
    /** Pairs of a rank and how many lines it said, or -1 for an item. */
    order: v.array(v.pipe(v.number(), v.safeInteger(), v.minValue(-1))),
    notices: v.array(text),
    /** The other ranks that it runs on, whose output is not shown. */
    unseen: v.optional(v.array(v.object({ rank: whole, state, note: v.optional(text), traceback: v.optional(text) }))),
    number: v.optional(whole),
    /** How the pool outlives the notebook's kernel, where it does: see Outliving of display/model/outliving.py. */
    outliving: v.optional(v.object({ how: v.picklist(["kept", "joined", "lease"]), lease: v.nullish(number) })),
    /** Nobody could tell how it went on, and whether it has ended. */
    unknown: v.optional(v.boolean()),
    /** Where the pool's machines are bought. */
    cost: v.nullish(cost),
  }),
  v.check(({ ranks }) => new Set(ranks.map((one) => one.rank)).size === ranks.length, "a rank is there twice"),
  v.check(({ ranks, items }) => {
    const has = (place: number | undefined) => place === undefined || place < items.length;
    return ranks.every((one) => has(one.result) && one.parts.every((each) => has(each.item)));
  }, "an item is not there"),
);
export type Snapshot = v.InferOutput<typeof snapshot>;

const ENTRIES = {
  s: v.tuple([v.literal("s"), whole, whole, whole, whole, number]),
  d: v.tuple([v.literal("d"), whole, v.nullish(text), record, record]),
  u: v.tuple([v.literal("u"), whole, text, record, record]),
  r: v.tuple([v.literal("r"), whole, record, record]),
  c: v.tuple([v.literal("c"), whole, v.boolean()]),
  e: v.tuple([v.literal("e"), whole, v.object({ state, note: text, traceback: text })]),
  n: v.tuple([v.literal("n"), text]),
  over: v.tuple([v.literal("over"), number, v.nullish(cost)]),
};
type Entries = { [K in keyof typeof ENTRIES]: v.InferOutput<(typeof ENTRIES)[K]> };
export type Entry = Entries[keyof Entries];

const entry = v.lazy((value): v.GenericSchema<Entry> => {
  const kind = Array.isArray(value) ? (value[0] as keyof typeof ENTRIES) : "s";
  return Object.hasOwn(ENTRIES, kind) ? (ENTRIES[kind] as unknown as v.GenericSchema<Entry>) : (v.never() as never);
});
const delta = v.object({
  sky: v.literal("delta"),
  view: text,
  /** The run's id, once something has come of it: a page may have been there before. */
  run: v.nullish(text),
  number: whole,
  /** Pairs of a rank and the journal's number of what comes after this. */
  next: v.optional(v.array(v.tuple([whole, whole]))),
  entries: v.array(entry),
  /** Where the price per hour has changed. */
  cost: v.nullish(cost),
  /** The buffer in base64, where buffers do not arrive. */
  data: v.optional(text),
});
export type Delta = v.InferOutput<typeof delta>;

/** How many bytes the texts of a delta have. */
export function sizeOf(delta: Delta): number {
  return delta.entries.reduce((sum, one) => sum + (one[0] === "s" ? one[3] : 0), 0);
}

const bundle = v.pipe(record, v.check((data) => MIME in data, "it holds no run"));
const opened = v.object({ run: v.optional(snapshot), bundle: v.optional(bundle) });
/** A run that goes on, or what the notebook keeps of one that is over. */
export type Opened = v.InferOutput<typeof opened>;

const views = v.object({ views: v.array(v.object({ view: text, cell: text, live: v.boolean() })) });
export type ViewFacts = v.InferOutput<typeof views>["views"][number];

const event = v.object({
  kind: text,
  seq: v.optional(whole),
  rank: v.optional(whole),
  name: v.optional(text),
  text: v.optional(text),
  data: v.optional(record),
  metadata: v.optional(record),
  display_id: v.nullish(text),
  wait: v.optional(v.boolean()),
  bytes: v.optional(number),
  why: v.optional(text),
});
/** An event of the journal, as pool/runs/journal_pages.py gives it. */
export type JournalEvent = v.InferOutput<typeof event>;

const page = v.object({
  /** The journal's numbers of the first event, of the one after the last, and of the next that will come. */
  from: whole,
  next: whole,
  end: whole,
  events: v.optional(v.array(event)),
  text: v.optional(text),
});
export type LogPage = v.InferOutput<typeof page>;
const log = v.object({ nodes: v.array(page) });

const openings = v.object({
  comms: v.array(
    v.object({ content: v.looseObject({ comm_id: text }), metadata: record, buffers: whole }),
  ),
});

export const readSnapshot = (value: unknown) => read(snapshot, value, "this run");
/** A delta, whose texts have so many `bytes`. */
export function readDelta(value: unknown, bytes: number): Delta {
  const found = read(delta, value, "what the kernel told of a run");
  if (sizeOf(found) > bytes) {
    throw new Misfit("a text that the kernel told of did not come");
  }
  return found;
}

export const readOpened = (value: unknown) => read(opened, value, "the kernel's answer");
export const readViews = (value: unknown) => read(views, value, "the kernel's answer").views;
export const readLog = (value: unknown) => read(log, value, "the kernel's answer").nodes;
export const readOpenings = (value: unknown) => read(openings, value, "the kernel's answer").comms;
