/** What the server's part of Sky Jupyter answers: server/pool_list.py and server/handlers.py. */
import * as v from "valibot";

import { number, read, text, whole } from "../page/validate";
import { cost } from "../page/cost";

// As the server's addresses have it.
const id = v.pipe(text, v.regex(/^[A-Za-z0-9_-]{1,64}$/));
// It is put into a cell, behind a magic.
const name = v.pipe(text, v.regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/));

const run = v.object({
  id: text,
  state: text,
  title: text,
  /** Seconds since 1970. */
  began: number,
  elapsed: v.nullable(number),
  ranks: v.nullable(whole),
  /** Who began it; told where the runs of several notebooks are listed, and empty where it is not known. */
  notebook: v.optional(text),
});
const pool = v.object({
  id,
  name,
  provider: text,
  nodes: whole,
  state: text,
  keep: v.boolean(),
  began: number,
  /** Who manages it; null for nobody. The kernel and the path are null unless this server started that kernel. */
  manager: v.nullable(v.object({ who: text, kernel: v.nullable(text), path: v.nullable(text) })),
  /** Its processes, or its keys, are on the server's machine. */
  here: v.boolean(),
  running: v.array(run),
  /** As its manager looked last; null where nothing is bought. */
  cost: v.nullable(cost),
});
const log = v.object({ run, ranks: v.array(v.object({ rank: whole, text })) });
const outcome = v.object({
  message: v.optional(text),
  /** Of `where`, each rank's stack. */
  text: v.optional(text),
});

const terminal = v.object({
  /** What the server calls it. */
  terminal: v.pipe(text, v.regex(/^\w{1,64}$/)),
});

const entry = v.object({
  name: text,
  kind: v.picklist(["file", "directory", "other", "link"]),
  size: whole,
  /** Seconds since 1970. */
  modified: number,
  /** Where it leads. */
  link: v.nullable(text),
});
const folder = v.object({
  path: text,
  ranks: whole,
  entries: v.array(entry),
  /** How many entries follow, which come after the name `last`. */
  more: whole,
  last: text,
});
const facts = { size: whole, modified: number };
const content = v.variant("kind", [
  v.object({ kind: v.literal("text"), ...facts, text, from: whole, next: whole }),
  v.object({ kind: v.picklist(["image/png", "image/jpeg", "image/gif", "image/svg+xml"]), ...facts, data: text }),
  v.object({ kind: v.literal("other"), ...facts }),
]);
const transfer = v.object({
  fetch: v.pipe(text, v.regex(/^[A-Za-z0-9_-]{1,64}$/)),
  name: text,
  there: whole,
  total: whole,
  state: v.picklist(["on", "done", "stopped", "failed"]),
  message: text,
});

export type Entry = v.InferOutput<typeof entry>;
export type Folder = v.InferOutput<typeof folder>;
export type Content = v.InferOutput<typeof content>;
/** How far a file is that the kernel fetches. */
export type Transfer = v.InferOutput<typeof transfer>;
export type Run = v.InferOutput<typeof run>;
export type Pool = v.InferOutput<typeof pool>;
export type Log = v.InferOutput<typeof log>;
/** What came of an action. */
export type Outcome = v.InferOutput<typeof outcome>;

const list = v.object({ pools: v.array(pool) });

export const readPools = (value: unknown) => read(list, value, "the server's answer").pools;
export const readLog = (value: unknown) => read(log, value, "the server's answer");
export const readFolder = (value: unknown) => read(folder, value, "the list of files");
export const readContent = (value: unknown) => read(content, value, "the file");
export const readTransfer = (value: unknown) => read(transfer, value, "the server's answer");
export const readOutcome = (value: unknown) => read(outcome, value, "the server's answer");
export const readTerminal = (value: unknown) => read(terminal, value, "the server's answer").terminal;
