/** A pool as `status` tells of it (docs/actions.md), and what is kept of it from one answer to the next. */

import type { PhaseFacts, PoolFacts, Sample } from "./schema";

/** So many seconds of samples are shown; nodes keep no more. */
export const SPAN = 300;
/** How many lines of each phase are asked for while they change. */
export const LINES = 100;

export type { NodeFacts, PartFacts, PhaseFacts, PoolFacts, RankFacts, RunFacts, Sample, Saved } from "./schema";

const CHANGING = ["starting", "restarting", "resizing", "ending"];

/** Whether something is being done to the pool itself. */
export function isChanging(pool: PoolFacts): boolean {
  return CHANGING.includes(pool.state);
}

/** One pool: its newest facts, and the samples of its nodes. */
export class PoolModel {
  /** By node, the oldest first; the time of each instead of its age. */
  readonly samples = new Map<number, Sample[]>();

  /** `now` is when the facts were told, in seconds. */
  constructor(
    public facts: PoolFacts,
    now: number,
  ) {
    this.keep(facts, now);
  }

  /** What came after the facts that are here; `whole` says that all lines of the phases were asked for. */
  take(facts: PoolFacts, now: number, whole: boolean): void {
    const phases = whole ? facts.phases : facts.phases.map((phase) => this.fuller(phase));
    this.facts = { ...facts, phases };
    this.keep(facts, now);
  }

  private fuller(phase: PhaseFacts): PhaseFacts {
    const known = this.facts.phases.find((one) => one.phase === phase.phase && one.at === phase.at);
    if (!known || known.state === "on" || known.state !== phase.state) {
      return phase;
    }
    return { ...phase, lines: known.lines, nodes: known.nodes };
  }

  private keep(facts: PoolFacts, now: number): void {
    for (const node of this.samples.keys()) {
      if (node >= facts.nodes.length) {
        this.samples.delete(node);
      }
    }
    for (const { node, samples } of facts.nodes) {
      const width = samples[0]?.length;
      // A node that has been replaced may have other GPUs.
      const kept = (this.samples.get(node) ?? []).filter((one) => one[0] > now - SPAN && (!width || one.length === width));
      this.samples.set(node, [...kept, ...samples.map(([age, ...values]) => [now - age, ...values])]);
    }
  }
}
