/** How a pool is told in words. As display/notebook/pool_panel.py. */

import { costText } from "../page/cost";
import { rankLabel } from "../run/folding";
import { duration } from "../run/run-status";
import type { NodeFacts, PhaseFacts, PoolFacts, RankFacts, RunFacts } from "./model";

const TITLE = 50;

export { duration };

export function percent(part: number): string {
  return `${Math.round(100 * part)}%`;
}

export function ofBytes(used: number, whole: number): string {
  return `${(used / 1e9).toFixed(1)} of ${(whole / 1e9).toFixed(1)} GB`;
}

function bytes(size: number): string {
  return size >= 1e9 ? `${(size / 1e9).toFixed(1)} GB` : `${(size / 1e6).toFixed(0)} MB`;
}

/** Seconds without a fraction. */
export function whole(seconds: number): string {
  return duration(Math.floor(seconds)).replace(".0 s", " s");
}

export function count(number: number, word: string): string {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

/** What stands beside a pool's name. */
export function poolFacts(pool: PoolFacts): string[] {
  const facts = [count(pool.nodes.length, `${pool.provider} node`)];
  if (pool.world_size !== pool.nodes.length) {
    facts.push(count(pool.world_size, "rank"));
  }
  facts.push(pool.why ? `${pool.state} (${pool.why})` : pool.state);
  if (pool.uptime && pool.state !== "starting") {
    facts.push(`up ${whole(pool.uptime)}`);
  }
  if (pool.plugins.length) {
    facts.push(pool.plugins.join(", "));
  }
  if (pool.remaining) {
    facts.push(pool.remaining);
  }
  if (pool.cost) {
    facts.push(costText(pool.cost));
  }
  return facts;
}

/** Such as "In[3]: train(data) · 12.0 s · silent for 3 s · rank 1 works". */
export function runText(run: RunFacts): string {
  const shown = run.title.length <= TITLE ? run.title : `${run.title.slice(0, TITLE - 1)}…`;
  const parts = [`${run.count ? `In[${run.count}]` : `run ${run.id}`}: ${shown}`, whole(run.elapsed)];
  if (run.silent >= 2) {
    parts.push(`silent for ${whole(run.silent)}`);
  }
  if (run.left.length) {
    const all = run.left.length === run.ranks.length;
    parts.push(all ? "all ranks work" : `${rankLabel(run.left)} ${run.left.length === 1 ? "works" : "work"}`);
  }
  if (run.failed.length) {
    parts.push(`${rankLabel(run.failed)} failed`);
  }
  if (run.timed_out || run.interrupted) {
    parts.push(run.timed_out ? "timed out" : "interrupted");
  }
  return parts.join(" · ");
}

/** `starting` says that the pool has not had kernels before. */
export function rankText(rank: RankFacts, starting = false): string {
  if (!rank.pid) {
    return `rank ${rank.rank}: ${starting ? "its kernel starts" : "its kernel is being replaced"}`;
  }
  const memory = rank.memory ? `, ${bytes(rank.memory)}` : "";
  return `rank ${rank.rank}: ${rank.run ? "busy" : "idle"} (process ${rank.pid}${memory})`;
}

export function ranksText(node: NodeFacts): string {
  if (!node.ranks.length) {
    return "";
  }
  const busy = node.ranks.filter((rank) => rank.run).length;
  return `${rankLabel(node.ranks.map((rank) => rank.rank))}${busy ? ` (${busy} busy)` : ""}`;
}

/** What a node is at while its pool starts; otherwise its state. */
export function nodeState(node: NodeFacts, pool: PoolFacts): string {
  if (node.state === "lost") {
    return "lost; restart recreates it";
  }
  const on = pool.phases.find((phase) => phase.state === "on");
  if (node.state !== "starting" || !on) {
    return node.state;
  }
  const part = on.nodes?.find((one) => one.node === node.node);
  if (part) {
    const at = part.state === "on" ? [part.line, whole(part.elapsed)] : [part.state, whole(part.elapsed)];
    return [`${on.phase}:`, at.filter(Boolean).join(" · ")].join(" ");
  }
  if (on.phase === "agent" && node.address) {
    return "agent: there";
  }
  const ready = node.ranks.filter((rank) => rank.entered).length;
  return on.phase === "plugins" && node.ranks.length
    ? `kernels: ${ready} of ${node.ranks.length} ready`
    : on.nodes?.length
      ? `${on.phase}: waiting`
      : on.phase;
}

/** Such as "12.0 s of about 40.0 s"; what takes longer than it usually does is no part of that. */
function pace(elapsed: number, usual: number): string {
  return `${duration(elapsed)}${elapsed <= usual ? " of about " : ", usually "}${duration(usual)}`;
}

/** Such as "environment · 12.0 s of about 40.0 s". */
export function phaseText(phase: PhaseFacts): string {
  const took = duration(phase.elapsed);
  if (phase.state === "on") {
    return `${phase.phase} · ${phase.usual ? pace(phase.elapsed, phase.usual) : `${took} so far`}`;
  }
  const usual = phase.usual && phase.usual >= 1 ? `, usually ${duration(phase.usual)}` : "";
  return `${phase.phase} · ${phase.state === "failed" ? `failed after ${took}` : took}${usual}`;
}

/** How far a start is, or how long it took. */
export function startText(pool: PoolFacts): string {
  const on = pool.phases.find((phase) => phase.state === "on");
  const took = pool.phases.reduce((sum, phase) => sum + phase.elapsed, 0);
  if (on) {
    const line = on.lines[on.lines.length - 1] ?? on.text;
    return `${phaseText(on)}${line ? ` · ${line}` : ""}`;
  }
  const failed = pool.phases.find((phase) => phase.state === "failed");
  return failed ? `${failed.phase} failed after ${duration(took)}` : `ready in ${duration(took)}`;
}
