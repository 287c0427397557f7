"""Whether a run's record is what its plan, and what happened meanwhile, allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.soak import words
from tests.soak.child import Failed
from tests.soak.plans import RANKS_PER_NODE, WORLD, Planned

if TYPE_CHECKING:
    from tests.soak.stage import Stage


class Check:
    """Whether a run's record is what it must be."""

    def __init__(self, stage: Stage, plan: Planned, record: dict[str, Any]) -> None:
        self.stage, self.plan, self.record = stage, plan, record
        self.told = {rank: facts["status"] for rank, facts in record["ranks"].items()}
        self.failures = 0

    def fail(self, text: str) -> None:
        plan = self.plan
        self.failures += 1
        if self.failures > 2:
            return
        said = {
            rank: (its["status"], *(its[name] for name in ("ename", "evalue", "text", "why") if its[name]))
            for rank, its in self.record["ranks"].items()
        }
        self.stage.diary.fail(
            f"{plan} (run {plan.id}, presses {plan.presses}, nodes lost {plan.lost_nodes}, killed {plan.killed_ranks})"
            f": {text}\n  {said}\n  {self.record.get('notices')}"
        )

    def all(self) -> None:
        plan, record = self.plan, self.record
        ranks = list(record["ranks"])
        if ranks != plan.ranks and not (plan.call == ">>" and len(ranks) == 1):
            self.fail(f"it was on ranks {ranks}")
        if record["escaped"]:
            self.fail(f"{record['escaped']} interrupts came out of `wait`")
        ends = {status for status in self.told.values() if status != "ok"}
        self.stage.over[plan.id] = "ok" if not ends else "interrupted" if ends == {"interrupted"} else "failed"
        for rank in ranks:
            self.status(rank)
            self.marks(rank)
            self.output(rank, record["ranks"][rank], "live")
            if self.told[rank] == "ok":
                self.value(rank)

    def status(self, rank: int) -> None:
        plan = self.plan
        fate = plan.fates.get(rank, "")
        base = {"": "ok", "sleeps": "interrupted", "raises": "error"}.get(fate, "died")
        if plan.ending in ("sleep", "ignore") and base == "ok":
            base = "interrupted"
        allowed = {base}
        stopped = set(plan.fates) - {rank} or plan.lost_nodes or plan.killed_ranks - {rank}
        # Where others fail, this one is stopped after its grace; in a collective it may see the loss itself.
        if stopped:
            allowed |= {"interrupted", "error"} if plan.ending == "meet" else {"interrupted"}
        if plan.presses:
            allowed |= {"interrupted"}
        if plan.presses > 1:
            allowed |= {"died", "error"} if plan.ending == "meet" else {"died"}
        if rank // RANKS_PER_NODE in plan.lost_nodes:
            allowed |= {"lost", "died"}
        if rank in plan.killed_ranks:
            allowed |= {"died"}
        if self.told[rank] not in allowed:
            self.fail(f"rank {rank} ended as {self.told[rank]!r} and not as one of {sorted(allowed)}")

    def marks(self, rank: int) -> None:
        path = self.stage.marks / f"{self.plan.number}-{rank}"
        mark = path.read_text() if path.exists() else ""
        wanted = {"ok": ("xy",)}.get(self.told[rank], ("", "x", "xy"))
        if self.told[rank] == "error" and self.plan.fates.get(rank) == "raises":
            wanted = ("x",)
        if mark not in wanted:
            self.fail(f"rank {rank} left the marks {mark!r}, and ended as {self.told[rank]!r}")

    def output(self, rank: int, facts: dict[str, Any], where: str) -> None:
        plan = self.plan
        wanted = words.expected(self.stage.seed, plan.number, rank, plan.kind)
        whole = facts["status"] == "ok" or (facts["status"] == "error" and plan.fates.get(rank) == "raises")
        for stream in ("stdout", "stderr"):
            said = facts[stream]
            if facts["status"] in ("interrupted", "error"):
                said = words.without_interrupt(said)
            if text := words.differs(plan.kind, said, wanted[stream], whole=whole):
                self.fail(f"{stream} of rank {rank}, {where} ({facts['status']}): {text}")

    def value(self, rank: int) -> None:
        value, plan, stage = self.record["ranks"][rank].get("value"), self.plan, self.stage
        if not isinstance(value, tuple) or value[:2] != (plan.number, rank):
            self.fail(f"rank {rank} returned {value!r:.200}")
            return
        pid = value[2]
        if plan.call:
            return
        _, _, _, seen, ending = value
        before = stage.seen.get(rank)
        if before is not None and before[0] == pid:
            # Of two runs the later one may be looked at first.
            common = min(len(seen), len(before[1]))
            if seen[:common] != before[1][:common]:
                self.fail(f"rank {rank} is the same process with other names: {before[1][-5:]} and now {seen[-5:]}")
            seen = max(seen, before[1], key=len)
        if before is not None and before[0] != pid:
            if rank not in stage.unsure:
                self.fail(f"rank {rank} is a new process, and nobody said so: {before[0]} and now {pid}")
            if set(seen) & set(before[1]):
                self.fail(f"rank {rank} is a new process with old names: {before[1][-5:]} and now {seen[-5:]}")
        stage.unsure.discard(rank)
        stage.seen[rank] = (pid, seen)
        wanted = {
            "large": lambda: words.large(plan.number, rank),
            "digest": lambda: words.digest(plan.sent),
            "meet": lambda: float(sum(range(1, WORLD + 1))),
        }.get(plan.ending, lambda: None)()
        if ending != wanted:
            self.fail(f"rank {rank} ended with {ending!r:.100} instead of {wanted!r:.100}")

    def journals(self) -> None:
        """What the nodes' journals have is what came while it was on."""
        stage, plan = self.stage, self.plan
        try:
            log = stage.child.ask("log", plan.id)
        except Failed as error:
            self.fail(f"its journals cannot be read: {str(error).strip().splitlines()[-1]}")
            return
        for rank, live in self.record["ranks"].items():
            kept = log["ranks"].get(rank)
            if kept is None:
                self.fail(f"the journals have nothing of rank {rank}")
                continue
            lost = "lost" in (kept["status"], live["status"])
            ours = live["status"] == "interrupted" and kept["status"] in ("error", "died", "ok")
            if kept["status"] != live["status"] and not lost and not ours:
                self.fail(f"rank {rank} ended as {live['status']!r}, and in the journal as {kept['status']!r}")
            if kept["status"] == "running":
                self.fail(f"rank {rank} has no end in the journal")
            for stream in ("stdout", "stderr"):
                if kept[stream] != live[stream] and not (lost and kept[stream].startswith(live[stream])):
                    text = words.differs("", live[stream], kept[stream], whole=True)
                    self.fail(f"{stream} of rank {rank} was, live against its journal: {text}")
            if lost:
                self.output(rank, kept, "in the journal")
