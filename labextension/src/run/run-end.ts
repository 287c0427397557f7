/** What the kernel tells of a long run's end. */

import * as v from "valibot";

import { duration } from "../format";

export const RUN_ENDED = "sky_run_ended";
const MOST_TEXT = 200;
const text = v.pipe(v.string(), v.transform((value) => value.slice(0, MOST_TEXT)));
const end = v.object({
  run: text,
  pool: text,
  title: text,
  count: v.number(),
  /** As `%sky runs` says it: "ok", "failed", "interrupted" or "timed out". */
  state: text,
  /** The ranks that failed, in words. */
  failed: text,
  elapsed: v.pipe(v.number(), v.minValue(0)),
});

export type Heard = v.InferOutput<typeof end>;

/** The run that has ended; undefined where a kernel of another version says it otherwise. */
export function readRunEnd(content: unknown): Heard | undefined {
  const found = v.safeParse(end, content);
  return found.success ? found.output : undefined;
}

export function textOf(run: Heard): string {
  const what = run.count > 0 ? `In[${run.count}] ${run.title}` : run.title;
  const how = run.state === "ok" ? "is done" : run.state === "timed out" ? "has timed out" : `has ${run.state}`;
  const where = run.state !== "ok" && run.failed ? ` on ${run.failed}` : "";
  return `${what} ${how}${where} after ${duration(run.elapsed)} (pool ${run.pool})`;
}
