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

export type Run = v.InferOutput<typeof run>;
export type Pool = v.InferOutput<typeof pool>;
export type Log = v.InferOutput<typeof log>;
/** What came of an action. */
export type Outcome = v.InferOutput<typeof outcome>;

const list = v.object({ pools: v.array(pool) });

export const readPools = (value: unknown) => read(list, value, "the server's answer").pools;
export const readLog = (value: unknown) => read(log, value, "the server's answer");
export const readOutcome = (value: unknown) => read(outcome, value, "the server's answer");
export const readTerminal = (value: unknown) => read(terminal, value, "the server's answer").terminal;
