"""The soak: random actions on one kept pool, under a seed, with each run's record checked.

    python -m tests.soak.driver --seconds 3600 --seed 7

A manager in a process of its own (`tests.soak.manager`) does what this one decides. For a first
part of the time everything may happen: managers, agents, schedulers and kernels are killed, ranks
fail in every way. Then comes a steady part in which the manager, the agents and the kernels of the
first ranks live on, so that their memory can be seen to stay as it is.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from sky_jupyter.pool.registry import Registry
from tests.programs import MARK, ROOT, assert_nothing_is_left
from tests.soak import words
from tests.soak.memory import Memory

NODES, RANKS_PER_NODE = 2, 2
WORLD = NODES * RANKS_PER_NODE
ROUGH = 0.4
# No wait lasts longer: what does is a hang.
LIMIT = 120.0
_MOST_FAILURES = 25
_LAST = 30


class Hang(Exception):
    """Something did not answer in time; the soak cannot go on."""


class Failed(Exception):
    """A request of the manager raised; the message is its traceback."""


@dataclass
class Planned:
    """What a run shall do, and what may become of it.

    Parameters
    ----------
    fates : dict of int to str
        How ranks end that do not end well.
    """

    number: int
    kind: str
    ranks: list[int]
    fates: dict[int, str] = field(default_factory=dict)
    ending: str = "value"
    pace: float = 0.0
    grace: float = 1.0
    call: str = ""
    sent: bytes | None = None
    id: str = ""
    # What else happened while it was on.
    presses: int = 0
    lost_nodes: set[int] = field(default_factory=set)
    killed_ranks: set[int] = field(default_factory=set)
    orphaned: bool = False

    def __str__(self) -> str:
        parts = [f"#{self.number} {self.call or 'cell'} {self.kind}, ends with {self.ending} on {self.ranks}"]
        parts += [f"fates {self.fates}"] if self.fates else []
        return ", ".join(parts)


class Child:
    """A manager's process; killed or closed, and then another takes its place."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            command = [sys.executable, "-m", "tests.soak.manager", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=file, stderr=file, pass_fds=[theirs.fileno()]
            )
        self.connection = Connection(ours.detach())
        self.busy = ""

    def ask(self, verb: str, *arguments: Any, limit: float = LIMIT) -> Any:
        """Have it do something, and wait for the answer."""
        self.send(verb, *arguments)
        return self.receive(limit)

    def send(self, verb: str, *arguments: Any) -> None:
        assert not self.busy, f"{self.busy} is still on"
        self.busy = verb
        self.connection.send((verb, arguments))

    def receive(self, limit: float = LIMIT) -> Any:
        if not self.connection.poll(limit):
            raise Hang(f"the manager did not answer to {self.busy!r} within {limit:.0f} s")
        try:
            state, value = self.connection.recv()
        except (EOFError, ConnectionError):
            raise Hang(f"the manager ended by itself in {self.busy!r}: status {self.process.wait(5)}") from None
        verb, self.busy = self.busy, ""
        if state == "error":
            raise Failed(f"{verb}: {value}")
        return value

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class Soak:
    """One soak; made and used once."""

    def __init__(self, folder: Path, seconds: float, seed: int, *, torch: bool = True, say: bool = True) -> None:
        self.folder, self.seconds, self.seed, self.torch = folder, seconds, seed, torch
        self.aloud = say
        self.random = random.Random(seed)
        self.name = f"soak-{uuid.uuid4().hex[:8]}"
        self.mark = uuid.uuid4().hex
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.log = folder / "manager.log"
        self.env = {
            **os.environ,
            MARK: self.mark,
            "SKY_REGISTRY": str(folder / "registry.sqlite"),
            "PYTHONPATH": str(ROOT),
        }
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.actions: collections.deque[str] = collections.deque(maxlen=_LAST)
        self.failures: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.took: collections.Counter[str] = collections.Counter()
        self.number = 0
        self.pool = ""
        self.facts: dict[str, Any] = {}
        self.pids: dict[str, int] = {}
        # Each rank's process as it last told it, and the runs that this process has seen.
        self.seen: dict[int, tuple[int, list[int]]] = {}
        # Ranks that may be new without the present manager knowing it, and those that were killed while idle.
        self.unsure: set[int] = set(range(WORLD))
        self.dead: set[int] = set()
        self.killed: dict[str, list[float]] = {}
        self.left: dict[str, Planned] = {}
        self.over: dict[str, str] = {}
        self.never: set[str] = set()
        self.steady = False
        self.memory = Memory()
        self.began = time.monotonic()

    # -- telling

    def note(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:7.1f} s  {text}"
        self.actions.append(line)
        with (self.folder / "actions.log").open("a") as file:
            file.write(line + "\n")
        if self.aloud:
            print(line, flush=True)

    def fail(self, text: str) -> None:
        self.note(f"FAILURE {text[:2000]}")
        if len(self.failures) >= _MOST_FAILURES:
            return
        last = "\n  ".join(self.actions)
        self.failures.append(f"{text}\nthe last actions:\n  {last}")

    @property
    def report(self) -> str:
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        slow = ", ".join(f"{name} {self.took[name] / self.counts[name]:.1f}" for name in sorted(self.counts))
        head = f"seed {self.seed}, {self.seconds:.0f} s, {self.number} runs ({done})\nseconds each: {slow}"
        failures = "\n\n".join(f"{i}. {text}" for i, text in enumerate(self.failures, 1))
        return f"{head}\n{self.memory.table}\n{failures or 'nothing failed'}"

    # -- the whole

    def run(self) -> None:
        """Soak, end the pool, and see that nothing is left; failures are in `failures`."""
        self.note(f"seed {self.seed}")
        self.child = Child(self.env, self.log)
        try:
            self.pool = self.child.ask("up", self.name, NODES, RANKS_PER_NODE, self.torch, limit=180)
            self.look()
            self.phase(self.rough_actions(), self.seconds * ROUGH)
            self.calm()
            self.steady = True
            self.phase(self.steady_actions(), self.seconds * (1 - ROUGH), measured=True)
            self.collect_left()
            self.failures += self.memory.problems()
            self.finish()
        except Exception as error:
            if isinstance(error, Hang):
                self.dump()
            self.fail("".join(traceback.format_exception(error)))
        finally:
            self.clean_up()

    def phase(self, actions: dict[Callable[[], None], int], seconds: float, *, measured: bool = False) -> None:
        end = time.monotonic() + seconds
        every = max(3.0, min(30.0, seconds / 40))
        next_look = time.monotonic()
        while time.monotonic() < end and len(self.failures) < _MOST_FAILURES:
            if time.monotonic() >= next_look:
                self.measure(kept=measured)
                next_look = time.monotonic() + every
            (action,) = self.random.choices(list(actions), list(actions.values()))
            name = action.__name__
            began = time.monotonic()
            try:
                action()
            except Failed as error:
                self.fail(f"{name}: {error}")
            self.counts[name] += 1
            self.took[name] += time.monotonic() - began

    def rough_actions(self) -> dict[Callable[[], None], int]:
        return {
            **self.steady_actions(),
            self.kill_manager: 8,
            self.kill_manager_with_a_run_let_go: 3,
            self.kill_agent: 4,
            self.kill_agent_while_idle: 2,
            self.kill_kernel: 4,
            self.kill_kernel_while_idle: 2,
            self.restart: 2,
            self.release: 2,
        }

    def steady_actions(self) -> dict[Callable[[], None], int]:
        return {
            self.well: 30,
            self.large: 4,
            self.sends: 6,
            self.calls: 8,
            self.raises: 8,
            self.dies: 4,
            self.meets: 6,
            self.meets_not: 5,
            self.interrupted: 8,
            self.interrupted_twice: 4,
            self.let_go: 4,
            self.kill_scheduler: 3,
        }

    # -- actions

    def well(self) -> None:
        self.do(self.plan())

    def large(self) -> None:
        self.do(self.plan(ending="large"))

    def sends(self) -> None:
        plan = self.plan(ending="digest")
        plan.sent = self.random.randbytes(self.random.choice([100, 50_000, 2_000_000]))
        self.do(plan)

    def calls(self) -> None:
        plan = self.plan(ranks=range(WORLD), call=self.random.choice(["@", ">>"]), ending="value")
        if self.random.random() < 0.2:
            rank = self.random.randrange(WORLD)
            plan.fates = {rank: "raises"} if plan.call == "@" else dict.fromkeys(range(WORLD), "raises")
        self.do(plan)

    def raises(self) -> None:
        plan = self.plan(ranks=range(WORLD))
        some = self.random.sample(plan.ranks, self.random.randrange(1, WORLD + 1))
        plan.fates = dict.fromkeys(some, "raises")
        self.do(plan)

    def dies(self) -> None:
        plan = self.plan(ranks=range(WORLD))
        plan.fates = {self.mortal(): self.random.choice(["exits", "SIGKILL", "SIGSEGV"])}
        self.do(plan)

    def meets(self) -> None:
        self.do(self.plan(ranks=range(WORLD), ending="meet"))

    def meets_not(self) -> None:
        plan = self.plan(ranks=range(WORLD), ending="meet", grace=self.random.choice([0.1, 0.5]))
        how = self.random.choice(["raises", "raises", "raises", "exits"])
        plan.fates = {self.mortal() if how == "exits" else self.random.randrange(WORLD): how}
        self.do(plan)

    def interrupted(self) -> None:
        plan = self.plan(ending=self.random.choice(["sleep", "value", "meet"]), pace=1.0)
        if plan.ending == "meet":
            plan.ranks, plan.fates = list(range(WORLD)), {self.random.randrange(WORLD): "sleeps"}
        self.start(plan)
        self.child.send("wait", plan.id)
        time.sleep(self.random.uniform(0, 1.5))
        self.press(plan)
        self.attend(plan)

    def interrupted_twice(self) -> None:
        ranks = [2, 3] if self.steady else range(WORLD)
        plan = self.plan(ending=self.random.choice(["sleep", "ignore"]), ranks=ranks)
        self.start(plan)
        self.child.send("wait", plan.id)
        time.sleep(self.random.uniform(0, 1.0))
        self.press(plan)
        time.sleep(self.random.choice([0.0, 0.05, 0.5, 2.0]))
        self.press(plan)
        if plan.ending == "ignore":
            # Where both came as one, or before the rank had begun to ignore them.
            while not self.child.connection.poll(3):
                self.press(plan)
        self.attend(plan)

    def let_go(self) -> None:
        plans = [self.plan(pace=self.random.uniform(0, 1)) for _ in range(self.random.randrange(1, 3))]
        for plan in plans:
            self.start(plan)
        self.do(self.plan())
        for plan in plans:
            self.wait(plan)

    def kill_scheduler(self) -> None:
        if self.too_often("scheduler"):
            return
        plan = self.plan(pace=self.random.uniform(0, 2))
        self.start(plan)
        time.sleep(self.random.uniform(0, 1))
        self.kill("scheduler")
        self.wait(plan)

    def kill_agent(self) -> None:
        node = self.random.randrange(NODES)
        if self.too_often(f"agent {node}"):
            return
        plan = self.plan(
            pace=self.random.uniform(0, 2), ranks=range(WORLD), ending=self.random.choice(["value", "meet"])
        )
        self.start(plan)
        time.sleep(self.random.uniform(0, 1.5))
        self.kill(f"agent {node}")
        plan.lost_nodes.add(node)
        self.wait(plan)

    def kill_agent_while_idle(self) -> None:
        node = self.random.randrange(NODES)
        if self.too_often(f"agent {node}"):
            return
        self.kill(f"agent {node}")
        time.sleep(self.random.choice([0.0, 1.0]))
        plan = self.plan(ranks=range(WORLD))
        plan.lost_nodes.add(node)
        self.do(plan)

    def kill_kernel(self) -> None:
        rank = self.random.randrange(WORLD)
        plan = self.plan(pace=self.random.uniform(0, 2), ranks=range(WORLD))
        self.start(plan)
        time.sleep(self.random.uniform(0, 1.5))
        self.kill(f"rank {rank}", self.random.choice([signal.SIGKILL, signal.SIGSEGV]))
        plan.killed_ranks.add(rank)
        self.wait(plan)

    def kill_kernel_while_idle(self) -> None:
        rank = self.random.randrange(WORLD)
        self.kill(f"rank {rank}")
        time.sleep(self.random.choice([0.0, 0.5]))
        plan = self.plan(ranks=range(WORLD))
        plan.killed_ranks.add(rank)
        self.do(plan)

    def kill_manager(self) -> None:
        ending = self.random.choice(["value", "value", "large", "meet"])
        plan = self.plan(pace=self.random.uniform(0, 2), ending=ending)
        if self.random.random() < 0.3:
            plan.fates = {self.random.choice(plan.ranks): self.random.choice(["raises", "exits"])}
        if self.random.random() < 0.2:
            plan = self.plan(ranks=range(WORLD), call=self.random.choice(["@", ">>"]), ending="value", pace=1.0)
        self.start(plan, orphaned=True)
        self.child.send("wait", plan.id)
        time.sleep(self.random.uniform(0, 1.5) if self.random.random() < 0.7 else self.random.uniform(0, 0.02))
        self.replace_manager([plan])

    def kill_manager_with_a_run_let_go(self) -> None:
        plans = [self.plan(pace=self.random.uniform(0, 1)) for _ in range(2)]
        for plan in plans:
            self.start(plan, orphaned=True)
        time.sleep(self.random.uniform(0, 1.5))
        if self.random.random() < 0.3 and not self.too_often("scheduler"):
            self.kill("scheduler")
        self.replace_manager(plans)

    def restart(self) -> None:
        self.note("restart of all kernels")
        self.child.ask("restart")
        self.unsure = set(range(WORLD))
        self.look()
        self.well()

    def release(self) -> None:
        """The notebook ends in order, with a run on; another takes the pool up."""
        plan = self.plan(pace=self.random.uniform(0, 2))
        self.start(plan, orphaned=True)
        time.sleep(self.random.uniform(0, 1))
        self.note("the manager ends in order")
        self.child.process.send_signal(signal.SIGTERM)
        self.replace_manager([plan])

    # -- parts of actions

    def plan(self, *, ranks: Any = None, ending: str = "value", **more: Any) -> Planned:
        self.number += 1
        kind = more.pop("kind", None) or self.random.choice(words.KINDS)
        if ranks is None:
            everyone = ending == "meet" or self.random.random() < 0.7
            ranks = range(WORLD) if everyone else self.random.sample(range(WORLD), self.random.randrange(1, WORLD))
        more.setdefault("pace", self.random.choice([0.0, 0.0, 0.3]))
        return Planned(self.number, kind, sorted(ranks), ending=ending, **more)

    def mortal(self) -> int:
        """A rank that may die: in the steady part the first ones live on."""
        return self.random.randrange(2 if self.steady else 0, WORLD)

    def do(self, plan: Planned) -> None:
        self.start(plan)
        self.wait(plan)

    def start(self, plan: Planned, *, orphaned: bool = False) -> None:
        self.note(f"begins {plan}")
        plan.orphaned = orphaned
        if plan.call:
            arguments = (str(self.marks), self.seed, plan.number, plan.kind, plan.pace, plan.fates)
            plan.id = self.child.ask("begin_call", plan.call == ">>", arguments)
        else:
            options = {"ranks": plan.ranks, "count": plan.number, "grace": plan.grace}
            namespace = {} if plan.sent is None else {"sent": plan.sent}
            plan.id = self.child.ask("begin", self.code(plan), namespace, options)
        if self.dead:
            plan.killed_ranks |= self.dead
            self.dead = set()

    def code(self, plan: Planned) -> str:
        endings = {
            "value": "None",
            "large": f"words.large({plan.number}, rank)",
            "digest": "words.digest(sent)",
            "meet": "words.meet(rank, joins=True)",
            "sleep": "time.sleep(30)",
            "ignore": "time.sleep(30)",
        }
        return textwrap.dedent(f"""\
            import os, signal, time
            import sky_jupyter as sky
            from tests.soak import words
            rank = sky.instance_info().rank
            soak_seen = [*globals().get("soak_seen", []), {plan.number}]
            words.mark({str(self.marks)!r}, {plan.number}, rank, "x")
            words.say({self.seed}, {plan.number}, rank, {plan.kind!r}, {plan.pace})
            if {plan.ending == "ignore"}:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            if {plan.fates!r}.get(rank) == "sleeps":
                time.sleep(30)
            words.end({plan.fates!r}.get(rank, ""), {plan.number}, rank)
            ending = {endings[plan.ending]}
            words.mark({str(self.marks)!r}, {plan.number}, rank, "y")
            ({plan.number}, rank, os.getpid(), soak_seen, ending)
        """)

    def wait(self, plan: Planned) -> None:
        self.child.send("wait", plan.id)
        self.attend(plan)

    def press(self, plan: Planned) -> None:
        plan.presses += 1
        with contextlib.suppress(ProcessLookupError):
            self.child.process.send_signal(signal.SIGINT)

    def attend(self, plan: Planned) -> None:
        record = self.child.receive()
        self.unsure |= record["fresh"]
        check = Check(self, plan, record)
        check.all()
        self.look()
        check.journals()

    def kill(self, who: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.note(f"{number.name} to {who} ({self.pids[who]})")
        self.killed.setdefault(who, []).append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[who], number)
        if not who.startswith("rank"):
            # Not killed again before its successor is there, as that would be nobody's.
            process = self.pids[who]
            self.until(lambda: not psutil.pid_exists(process) or self.is_zombie(process), f"the end of {who}")

    def is_zombie(self, pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True

    def too_often(self, who: str) -> bool:
        """Whether the host would give it up: it has been killed four times within the last minute or so."""
        now = time.monotonic()
        return len([when for when in self.killed.get(who, []) if now - when < 70]) >= 4

    def replace_manager(self, plans: list[Planned]) -> None:
        self.note(f"SIGKILL to the manager ({self.child.process.pid})")
        self.child.kill()
        time.sleep(self.random.choice([0.0, 0.0, 1.0]))
        self.child = Child(self.env, self.log)
        self.child.ask("attach", self.name)
        self.unsure = set(range(WORLD))
        known = self.child.ask("known")
        for plan in plans:
            if plan.id in known:
                self.note(f"takes up #{plan.number} ({plan.id}), {'over' if known[plan.id] else 'still on'}")
                self.child.ask("adopt", plan.id)
                self.wait(plan)
            else:
                self.note(f"#{plan.number} ({plan.id}) had not begun")
                self.never.add(plan.id)
                marks = [path.name for path in self.marks.glob(f"{plan.number}-*")]
                if marks:
                    self.fail(f"{plan}: the nodes do not know it, and it has run: {marks}")
        self.look()

    def look(self) -> None:
        """Settle, and see who is who now; what is said to be new is, and nothing else."""
        self.settle()

        def whole() -> bool:
            try:
                status = self.child.ask("status", limit=30)
            except Failed as error:
                why = str(error).strip().splitlines()[-1]
                if "is broken" in why:
                    raise Hang(why) from None
                self.note(f"no status: {why}")
                time.sleep(0.2)
                return False
            pids = {f"agent {node}": facts["pid"] for node, facts in status.items()}
            pids |= {f"rank {rank}": its["pid"] for facts in status.values() for rank, its in facts["ranks"].items()}
            self.pids |= pids
            busy = [rank for facts in status.values() for rank, its in facts["ranks"].items() if its["busy_with"]]
            return len(pids) == NODES + WORLD and all(pids.values()) and (bool(self.left) or not busy)

        self.until(whole, "all agents and kernels", 60)
        facts = self.facts = self.child.ask("measure")
        self.until(lambda: self.find_processes(facts["host"], facts["port"]), "the scheduler", 30)
        self.settle()

    def settle(self) -> None:
        fresh, news = self.child.ask("settle")
        for text in news:
            self.note(f"news: {text}")
        self.unsure |= fresh

    def find_processes(self, host: int, port: int) -> bool:
        self.pids |= {"host": host, "manager": self.child.process.pid}
        for process in psutil.Process(host).children():
            with contextlib.suppress(psutil.Error):
                if port in [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]:
                    self.pids["scheduler"] = process.pid
                    self.pids["forkserver"] = psutil.Process(self.pids["rank 0"]).ppid()
                    return True
        return False

    def until(self, true: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise Hang(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.02)

    # -- between and after

    def calm(self) -> None:
        """Before the steady part: new kernels, and one manager that stays."""
        self.collect_left()
        self.note("the steady part begins")
        self.restart()
        # What is imported and kept at first use comes before the first look at sizes.
        for _ in range(2):
            self.large()
            self.sends()
            self.do(self.plan(kind="flood"))
            for rank in range(WORLD):
                self.do(self.plan(ranks=range(WORLD), ending="meet", grace=0.1, fates={rank: "raises"}))

    def collect_left(self) -> None:
        for plan in list(self.left.values()):
            self.wait(plan)

    def measure(self, *, kept: bool) -> None:
        """Sizes of all processes and folders now; what lies about that should not is told."""
        code = "import gc\nfor _ in range(3): gc.collect()"
        record = self.child.ask("wait", self.child.ask("begin", code, {}, {"count": self.number}))
        self.unsure |= record["fresh"]
        ends = {rank: (its["status"], its["ename"], its["text"]) for rank, its in record["ranks"].items()}
        if any(end[0] != "ok" for end in ends.values()):
            self.fail(f"an idle pool could not collect its garbage: {ends}")
        self.look()
        if kept:
            self.memory.sample(self.number, self.pids, self.facts)
        for folder in map(Path, self.facts["folders"]):
            stray = [path.name for path in folder.iterdir() if len(path.name) == 8 and path.is_dir()]
            stray += [f"{path.parent.parent.name}/values/{path.name}" for path in folder.glob("n*/values/*")]
            if stray and not self.left:
                self.fail(f"nothing is on, and in {folder} there is {stray}")

    def finish(self) -> None:
        """The end of the pool: its rows, processes, folders and sockets."""
        registry = Registry(Path(self.env["SKY_REGISTRY"]))
        try:
            rows = {row.id: row for row in registry.runs(self.pool, limit=100_000)}
            if wrong := [row.id for row in rows.values() if row.state == "running"]:
                self.fail(f"{len(wrong)} runs are over, and the registry has them as running: {wrong[:5]}")
            if wrong := [id for id in self.never if id in rows and rows[id].state != "lost"]:
                self.fail(f"{len(wrong)} runs never began, and the registry does not have them as lost: {wrong[:5]}")
            recent = list(self.over.items())[-500:]
            if absent := [id for id, _ in recent if id not in rows]:
                self.fail(f"the registry has no row of {len(absent)} runs: {absent[:5]}")
            if wrong := [id for id, state in recent if id in rows and rows[id].state not in (state, "running")]:
                self.fail(f"the registry has {len(wrong)} runs with another state than theirs: {wrong[:5]}")
        finally:
            registry.close()
        known = self.child.ask("known")
        if on := [id for id, over in known.items() if not over]:
            self.fail(f"the nodes think that {on} are still on")
        self.note("down")
        self.child.ask("down")
        left = psutil.Process(self.child.process.pid).net_connections("inet")
        if left:
            self.fail(f"the manager has sockets left: {left[:5]}")
        self.child.connection.close()
        self.child.process.wait(15)
        assert_nothing_is_left(self.mark, Path(self.env["SKY_REGISTRY"]))

    def dump(self) -> None:
        """What everybody is at, into the manager's log, whose end is in the failure."""
        with contextlib.suppress(Exception):
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                self.child.process.send_signal(number)
                time.sleep(1)
        with contextlib.suppress(Exception):
            text = self.log.read_text(errors="replace")[-20_000:]
            logs = [path for folder in self.facts.get("folders", ()) for path in Path(folder).glob("**/*.log")]
            for path in logs:
                text += f"\n--- {path}\n" + path.read_text(errors="replace")[-3000:]
            (self.folder / "hang.txt").write_text(text)
            self.note(f"what hangs: {self.folder / 'hang.txt'}\n{text}")

    def clean_up(self) -> None:
        """Whatever went wrong, nothing of ours goes on."""
        with contextlib.suppress(Exception):
            self.child.kill()
        registry = Registry(Path(self.env["SKY_REGISTRY"]))
        with contextlib.suppress(Exception):
            for row in registry.pools():
                if row.host_lives:
                    os.kill(row.host_pid, signal.SIGTERM)
                    host = psutil.Process(row.host_pid)
                    with contextlib.suppress(psutil.TimeoutExpired):
                        host.wait(15)
                        continue
                    host.kill()
        registry.close()


class Check:
    """Whether a run's record is what it must be."""

    def __init__(self, soak: Soak, plan: Planned, record: dict[str, Any]) -> None:
        self.soak, self.plan, self.record = soak, plan, record
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
        self.soak.fail(
            f"{plan} (run {plan.id}, presses {plan.presses}, nodes lost {plan.lost_nodes}, killed {plan.killed_ranks}, "
            f"orphaned {plan.orphaned}): {text}\n  {said}\n  {self.record.get('notices')}"
        )

    def all(self) -> None:
        plan, record = self.plan, self.record
        ranks = list(record["ranks"])
        if ranks != plan.ranks and not (plan.call == ">>" and len(ranks) == 1):
            self.fail(f"it was on ranks {ranks}")
        if record["escaped"]:
            self.fail(f"{record['escaped']} interrupts came out of `wait`")
        failed = any(status != "ok" for status in self.told.values())
        self.soak.over[plan.id] = "failed" if failed else "ok"
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
        path = self.soak.marks / f"{self.plan.number}-{rank}"
        mark = path.read_text() if path.exists() else ""
        wanted = {"ok": ("xy",)}.get(self.told[rank], ("", "x", "xy"))
        if self.told[rank] == "error" and self.plan.fates.get(rank) == "raises":
            wanted = ("x",)
        if mark not in wanted:
            self.fail(f"rank {rank} left the marks {mark!r}, and ended as {self.told[rank]!r}")

    def output(self, rank: int, facts: dict[str, Any], where: str) -> None:
        plan = self.plan
        wanted = words.expected(self.soak.seed, plan.number, rank, plan.kind)
        whole = facts["status"] == "ok" or (facts["status"] == "error" and plan.fates.get(rank) == "raises")
        for stream in ("stdout", "stderr"):
            said = facts[stream]
            if facts["status"] == "interrupted" and stream == "stderr":
                # IPython's word, where a second interrupt comes while it shows the first.
                said = said.removesuffix("\nKeyboardInterrupt\n\n")
            if text := words.differs(plan.kind, said, wanted[stream], whole=whole):
                self.fail(f"{stream} of rank {rank}, {where} ({facts['status']}): {text}")

    def value(self, rank: int) -> None:
        value, plan, soak = self.record["ranks"][rank].get("value"), self.plan, self.soak
        if not isinstance(value, tuple) or value[:2] != (plan.number, rank):
            self.fail(f"rank {rank} returned {value!r:.200}")
            return
        pid = value[2]
        if plan.call:
            return
        _, _, _, seen, ending = value
        before = soak.seen.get(rank)
        if before is not None and before[0] == pid:
            # Of two runs the later one may be looked at first.
            common = min(len(seen), len(before[1]))
            if seen[:common] != before[1][:common]:
                self.fail(f"rank {rank} is the same process with other names: {before[1][-5:]} and now {seen[-5:]}")
            seen = max(seen, before[1], key=len)
        if before is not None and before[0] != pid:
            if rank not in soak.unsure:
                self.fail(f"rank {rank} is a new process, and nobody said so: {before[0]} and now {pid}")
            if set(seen) & set(before[1]):
                self.fail(f"rank {rank} is a new process with old names: {before[1][-5:]} and now {seen[-5:]}")
        soak.unsure.discard(rank)
        soak.seen[rank] = (pid, seen)
        wanted = {
            "large": lambda: words.large(plan.number, rank),
            "digest": lambda: words.digest(plan.sent),
            "meet": lambda: float(sum(range(1, WORLD + 1))),
        }.get(plan.ending, lambda: None)()
        if ending != wanted:
            self.fail(f"rank {rank} ended with {ending!r:.100} instead of {wanted!r:.100}")

    def journals(self) -> None:
        """What the nodes' journals have is what came while it was on."""
        soak, plan = self.soak, self.plan
        try:
            log = soak.child.ask("log", plan.id)
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


def main() -> int:
    """Soak by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.Random().randrange(1 << 30))
    parser.add_argument("--plain", action="store_true", help="without torch")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.seconds, options.seed, torch=not options.plain)
    soak.run()
    print(soak.report)
    print(f"all actions: {folder}/actions.log")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
