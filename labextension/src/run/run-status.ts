/** How a run is told in words. As display/model/html.py. */

import { fold, rankLabel } from "./folding";
import type { Rank, RunModel, State } from "./model";

/** Seconds as people say them: "1.3 s", "2 min 5 s". */
export function duration(seconds: number): string {
  if (seconds < 60) {
    return `${Math.max(0, seconds).toFixed(1)} s`;
  }
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** The states of ranks that did not end well; what is most likely the cause comes first. */
export const TROUBLES: State[] = ["died", "failed", "timed out", "interrupted"];

/** Such as ["running, 1 of 2 done"] or ["rank 0 failed", "rank 1 interrupted"]. */
export function status(model: RunModel): string[] {
  const every = model.every;
  const bad = every.filter((rank) => TROUBLES.includes(rank.state));
  const groups = fold(
    bad.map((rank) => [rank.rank, rank.state] as [number, State]),
    (state) => state,
  ).sort((a, b) => TROUBLES.indexOf(a[1]) - TROUBLES.indexOf(b[1]));
  const words = groups.map(([ranks, state]) => `${rankLabel(ranks)} ${state}`);
  if (!model.finished) {
    const done = every.filter((rank) => rank.state === "done").length;
    const waiting = fold(
      every.filter((rank) => rank.waits).map((rank) => [rank.rank, rank.waits] as [number, string]),
      (word) => word,
    ).map(([ranks, word]) => `${rankLabel(ranks)} ${word}`);
    return [done ? `running, ${done} of ${every.length} done` : "running", ...waiting, ...words];
  }
  if (groups.length === 1 && groups[0][0].length === every.length) {
    return [groups[0][1]];
  }
  return words.length ? words : [!model.isRunning ? "done" : model.unknown ? "end not known" : "goes on"];
}

/** The rank whose tab is to be shown by itself: of those that failed the one that is most likely the cause. */
export function culprit(model: RunModel): number | undefined {
  return culpritOf(model.ranks)?.rank;
}

/** That rank: one that died before one that failed, then the one that was told first. */
export function culpritOf(ranks: Rank[]): Rank | undefined {
  let found: Rank | undefined;
  for (const rank of ranks) {
    if (rank.state === "died" || rank.state === "failed") {
      const before = found && (found.state === rank.state ? found.ended <= rank.ended : found.state === "died");
      found = before ? found : rank;
    }
  }
  return found;
}

/** Where the arrow keys lead from one of `count` tabs; undefined for other keys. */
export function tabAfter(key: string, index: number, count: number): number | undefined {
  const moves: Record<string, number> = {
    ArrowRight: (index + 1) % count,
    ArrowDown: (index + 1) % count,
    ArrowLeft: (index + count - 1) % count,
    ArrowUp: (index + count - 1) % count,
    Home: 0,
    End: count - 1,
  };
  return moves[key];
}
