"""The pool that is soaked, and its manager: runs on it, what is killed, and what is known of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.programs import MARK, ROOT
from tests.soak import words
from tests.soak.checks import Check
from tests.soak.child import Child, Failed, Hang
from tests.soak.diary import Diary
from tests.soak.plans import NODES, RANKS_PER_NODE, WORLD, Planned

# How long an agent takes to give memory back; one that is late is so in this sample only.
_TRIMMED = 0.5
# The host gives up what ends more than five times within a minute.
_MOST_KILLS, _KILLS_SPAN = 4, 70.0
# What a pool of so many nodes may take to come up, and to be whole again, on a machine that is busy.
_UP, _WHOLE = 180.0, 90.0


class Stage:
    """One a soak.

    Parameters
    ----------
    folder : Path
        For the registry, the marks of the ranks, and the manager's log.
    seed : int
        What the ranks say follows from it.
    diary : Diary
        Who is told.
    """

    def __init__(self, folder: Path, seed: int, diary: Diary) -> None:
        self.folder, self.seed, self.diary = folder, seed, diary
        self.name = f"soak-{uuid.uuid4().hex[:8]}"
        self.mark = uuid.uuid4().hex
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.log = folder / "manager.log"
        self.registry = folder / "registry.sqlite"
        self.env = {
            **os.environ,
            "SKY_RANKS_PER_AGENT": "1",
            MARK: self.mark,
            "SKY_REGISTRY": str(self.registry),
            "PYTHONPATH": str(ROOT),
        }
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.child = Child(self.env, self.log)
        self.pool = ""
        # What the manager last said of itself, and the process ids of all parts.
        self.facts: dict[str, Any] = {}
        self.pids: dict[str, int] = {}
        # Each rank's process as it last told it, and the runs that this process has seen.
        self.seen: dict[int, tuple[int, list[int]]] = {}
        # Ranks that may be new: all, where a manager is new or nothing has been run yet.
        self.unsure: set[int] = set(range(WORLD))
        # How each run ended that is over, and those that never began.
        self.over: dict[str, str] = {}
        self.never: set[str] = set()
        self._kills: dict[str, list[float]] = {}
        # Kernels that were killed and of which nobody may have heard yet: rank -> process.
        self._doomed: dict[int, int] = {}

    def up(self, *, torch: bool) -> None:
        """Start the pool."""
        self.pool = self.child.ask("up", self.name, NODES, RANKS_PER_NODE, torch, limit=_UP)
        self.look()

    # -- runs --------------------------------------------------------------------------------------

    def do(self, plan: Planned) -> None:
        """Run it to its end, and check its record."""
        self.start(plan)
        self.wait(plan)

    def start(self, plan: Planned) -> None:
        """Begin it, and let it go."""
        self.diary.note(f"begins {plan}")
        if plan.call:
            arguments = (str(self.marks), self.seed, plan.number, plan.kind, plan.pace, plan.fates)
            plan.id = self.child.ask("begin_call", plan.call == ">>", arguments)
        else:
            options = {"ranks": plan.ranks, "count": plan.number, "grace": plan.grace}
            namespace = {} if plan.sent is None else {"sent": plan.sent}
            plan.id = self.child.ask("begin", plan.cell(self.seed, self.marks), namespace, options)

    def send_wait(self, plan: Planned) -> None:
        """Have the manager wait for it, while something else is done; `attend` must follow."""
        self.child.send("wait", plan.id)

    def wait(self, plan: Planned) -> None:
        """Wait for its end, and check its record."""
        self.send_wait(plan)
        self.attend(plan)

    def press(self, plan: Planned) -> None:
        """Interrupt it, as a person would."""
        plan.presses += 1
        with contextlib.suppress(ProcessLookupError):
            self.child.process.send_signal(signal.SIGINT)

    def attend(self, plan: Planned) -> None:
        """Take the record of a run that is waited for, and check it."""
        record = self.child.receive()
        self.unsure |= record["fresh"]
        check = Check(self, plan, record)
        check.all()
        # Those that became new after the run, too.
        self.unsure |= record["fresh"]
        self.look()
        check.journals()

    # -- what befalls it ---------------------------------------------------------------------------

    def kill(self, who: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill one of `pids`."""
        self.diary.note(f"{number.name} to {who} ({self.pids[who]})")
        self._kills.setdefault(who, []).append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[who], number)
        if who.startswith("rank"):
            self._doomed[int(who.split()[1])] = self.pids[who]
        # Not killed again before its successor is there, as that would be nobody's.
        process = self.pids[who]
        self.until(lambda: not psutil.pid_exists(process) or _is_zombie(process), f"the end of {who}")

    def too_often(self, who: str) -> bool:
        """Whether the host would give it up if it were killed now."""
        now = time.monotonic()
        return len([when for when in self._kills.get(who, []) if now - when < _KILLS_SPAN]) >= _MOST_KILLS

    def restart(self) -> None:
        """New kernels for all ranks."""
        self.diary.note("restart of all kernels")
        self.child.ask("restart")
        self.unsure = set(range(WORLD))
        self.look()

    def end_manager(self) -> None:
        """Have the manager end as a notebook's kernel does that is shut down."""
        self.diary.note(f"the manager ends in order ({self.child.process.pid})")
        self.child.process.send_signal(signal.SIGTERM)

    def replace_manager(self, plans: list[Planned], pause: float) -> None:
        """Kill the manager while runs are on; another takes the pool up, and the runs."""
        self.diary.note(f"SIGKILL to the manager ({self.child.process.pid})")
        self.child.kill()
        time.sleep(pause)
        self.child = Child(self.env, self.log)
        self.child.ask("attach", self.name)
        self.unsure = set(range(WORLD))
        known = self.child.ask("known")
        for plan in plans:
            if plan.id in known:
                self.diary.note(f"takes up #{plan.number} ({plan.id}), {'over' if known[plan.id] else 'still on'}")
                self.child.ask("adopt", plan.id)
                self.wait(plan)
            else:
                self._note_never(plan)
        self.look()

    def _note_never(self, plan: Planned) -> None:
        self.diary.note(f"#{plan.number} ({plan.id}) had not begun")
        self.never.add(plan.id)
        if marks := [path.name for path in self.marks.glob(f"{plan.number}-*")]:
            self.diary.fail(f"{plan}: the nodes do not know it, and it has run: {marks}")

    # -- who is who --------------------------------------------------------------------------------

    def look(self) -> None:
        """Settle, and see who is who now."""
        self._settle()
        self.until(self._is_revived, "new kernels", _WHOLE)
        self.until(self._is_whole, "all agents and kernels", _WHOLE)
        self.facts = self.child.ask("measure")
        self.until(self._find_processes, "the scheduler", _WHOLE)
        self._settle()

    def _settle(self) -> None:
        fresh, news = self.child.ask("settle")
        for text in news:
            self.diary.note(f"news: {text}")
        self.unsure |= fresh

    def _is_revived(self) -> bool:
        """Whether all that were killed are replaced: one whose part was done is missed by the next run only."""
        if not self._doomed:
            return True
        self.unsure |= self.child.ask("wait", self.child.ask("begin", "None", {}, {"count": 0}))["fresh"]
        self._settle()
        kernels = {rank: its["pid"] for facts in self._status().values() for rank, its in facts["ranks"].items()}
        self._doomed = {rank: pid for rank, pid in self._doomed.items() if kernels.get(rank, 0) in (0, pid)}
        return not self._doomed

    def _status(self) -> dict[int, dict[str, Any]]:
        """What the agents say of themselves; nothing where one is away."""
        try:
            return dict(self.child.ask("status"))
        except Failed as error:
            why = str(error).strip().splitlines()[-1]
            if "is broken" in why:
                raise Hang(why) from None
            self.diary.note(f"no status: {why}")
            time.sleep(0.2)
            return {}

    def _is_whole(self) -> bool:
        """Whether all agents and kernels are there, and no kernel works on anything."""
        status = self._status()
        kernels = {rank: its for facts in status.values() for rank, its in facts["ranks"].items()}
        pids = {f"agent {node}": facts["pid"] for node, facts in status.items()}
        pids |= {f"rank {rank}": its["pid"] for rank, its in kernels.items()}
        self.pids |= pids
        busy = [rank for rank, its in kernels.items() if its["busy_with"]]
        return len(pids) == NODES + WORLD and all(pids.values()) and not busy

    def _find_processes(self) -> bool:
        """Whether the scheduler is there: the child of the host that listens at the pool's port."""
        host, port = self.facts["host"], self.facts["port"]
        self.pids |= {"host": host, "manager": self.child.process.pid}
        with contextlib.suppress(psutil.Error):
            self.pids["forkserver"] = psutil.Process(self.pids["rank 0"]).ppid()
        for process in psutil.Process(host).children():
            with contextlib.suppress(psutil.Error):
                if port in [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]:
                    self.pids["scheduler"] = process.pid
                    return True
        return False

    def until(self, true: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
        """Wait for something, not for ever."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise Hang(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.02)

    def collect_garbage(self, count: int) -> None:
        """Everywhere: only what is held is to be measured."""
        code = "from tests.soak import words\nwords.trim()"
        record = self.child.ask("wait", self.child.ask("begin", code, {}, {"count": count}))
        self.unsure |= record["fresh"]
        ends = {rank: (its["status"], its["ename"], its["text"]) for rank, its in record["ranks"].items()}
        if any(status != "ok" for status, *_ in ends.values()):
            self.diary.fail(f"the ranks of an idle pool could not collect their garbage: {ends}")
        self.look()
        for node in range(NODES):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[f"agent {node}"], words.TRIM)
        time.sleep(_TRIMMED)


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True
