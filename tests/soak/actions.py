"""What a soak does: runs of all kinds, and what befalls them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.soak import words
from tests.soak.plans import NODES, WORLD, Planned
from tests.soak.stage import Stage


class Actions:
    """Each method that `rough` and `steady` name is one action, from its begin to a pool that has settled.

    Parameters
    ----------
    stage : Stage
        The pool and its manager.
    seed : int
        What is done, in which order, and with which pauses follows from it.
    torch : bool
        Whether ranks can meet in collectives.
    """

    def __init__(self, stage: Stage, seed: int, *, torch: bool = True) -> None:
        self.stage = stage
        self.torch = torch
        self.random = random.Random(seed)
        # In the steady part, the manager, the agents and the kernels of the first two ranks live on.
        self.is_steady = False
        self.number = 0

    def rough(self) -> dict[Callable[[], None], int]:
        """Everything that may happen, and how often."""
        return {
            **self.steady(),
            self.kill_manager: 8,
            self.kill_manager_with_a_run_let_go: 3,
            self.kill_agent: 4,
            self.kill_agent_while_idle: 2,
            self.kill_kernel: 4,
            self.kill_kernel_while_idle: 2,
            self.restart: 2,
            self.release: 2,
        }

    def steady(self) -> dict[Callable[[], None], int]:
        """What leaves the manager and the agents alive."""
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

    def warm_up(self) -> None:
        """New kernels; then, what is imported and kept at first use."""
        self.restart()
        self.sends()
        self.large()
        self.stage.do(self.plan(kind="flood", ranks=range(WORLD)))
        for rank in range(WORLD):
            self.stage.do(self.plan(ranks=range(WORLD), ending="meet", grace=0.1, fates={rank: "raises"}))

    # -- runs, and how their ranks end -------------------------------------------------------------

    def well(self) -> None:
        self.stage.do(self.plan())

    def large(self) -> None:
        self.stage.do(self.plan(ending="large"))

    def sends(self) -> None:
        plan = self.plan(ending="digest")
        plan.sent = self.random.randbytes(self.random.choice([100, 50_000, 2_000_000]))
        self.stage.do(plan)

    def calls(self) -> None:
        plan = self.plan(ranks=range(WORLD), call=self.random.choice(["@", ">>"]), ending="value")
        if self.random.random() < 0.2:
            rank = self.random.randrange(WORLD)
            plan.fates = {rank: "raises"} if plan.call == "@" else dict.fromkeys(range(WORLD), "raises")
        self.stage.do(plan)

    def raises(self) -> None:
        plan = self.plan(ranks=range(WORLD))
        some = self.random.sample(plan.ranks, self.random.randrange(1, WORLD + 1))
        plan.fates = dict.fromkeys(some, "raises")
        self.stage.do(plan)

    def dies(self) -> None:
        plan = self.plan(ranks=range(WORLD))
        plan.fates = {self.mortal(): self.random.choice(["exits", "SIGKILL", "SIGSEGV"])}
        self.stage.do(plan)

    def meets(self) -> None:
        self.stage.do(self.plan(ranks=range(WORLD), ending="meet"))

    def meets_not(self) -> None:
        plan = self.plan(ranks=range(WORLD), ending="meet", grace=self.random.choice([0.1, 0.5]))
        how = self.random.choice(["raises", "raises", "raises", "exits"])
        plan.fates = {self.mortal() if how == "exits" else self.random.randrange(WORLD): how}
        self.stage.do(plan)

    def interrupted(self) -> None:
        plan = self.plan(ending=self.random.choice(["sleep", "value", "meet"]), pace=1.0)
        if plan.ending == "meet":
            plan.ranks, plan.fates = list(range(WORLD)), {self.random.randrange(WORLD): "sleeps"}
        self.stage.start(plan)
        self.stage.send_wait(plan)
        time.sleep(self.random.uniform(0, 1.5))
        self.stage.press(plan)
        self.stage.attend(plan)

    def interrupted_twice(self) -> None:
        ranks = [2, 3] if self.is_steady else range(WORLD)
        plan = self.plan(ending=self.random.choice(["sleep", "ignore"]), ranks=ranks)
        self.stage.start(plan)
        self.stage.send_wait(plan)
        time.sleep(self.random.uniform(0, 1.0))
        self.stage.press(plan)
        time.sleep(self.random.choice([0.0, 0.05, 0.5, 2.0]))
        self.stage.press(plan)
        if plan.ending == "ignore":
            # Where both came as one, or before the rank had begun to ignore them.
            while not self.stage.child.connection.poll(3):
                self.stage.press(plan)
        self.stage.attend(plan)

    def let_go(self) -> None:
        plans = [self.plan(pace=self.random.uniform(0, 1)) for _ in range(self.random.randrange(1, 3))]
        for plan in plans:
            self.stage.start(plan)
        self.stage.do(self.plan())
        for plan in plans:
            self.stage.wait(plan)

    # -- what befalls them -------------------------------------------------------------------------

    def kill_scheduler(self) -> None:
        if self.stage.too_often("scheduler"):
            return
        plan = self.plan(pace=self.random.uniform(0, 2))
        self.stage.start(plan)
        time.sleep(self.random.uniform(0, 1))
        self.stage.kill("scheduler")
        self.stage.wait(plan)

    def kill_agent(self) -> None:
        node = self.random.randrange(NODES)
        if self.stage.too_often(f"agent {node}"):
            return
        ending = self.random.choice(["value", "meet"])
        plan = self.plan(pace=self.random.uniform(0, 2), ranks=range(WORLD), ending=ending)
        self.stage.start(plan)
        time.sleep(self.random.uniform(0, 1.5))
        self.stage.kill(f"agent {node}")
        plan.lost_nodes.add(node)
        self.stage.wait(plan)

    def kill_agent_while_idle(self) -> None:
        node = self.random.randrange(NODES)
        if self.stage.too_often(f"agent {node}"):
            return
        self.stage.kill(f"agent {node}")
        time.sleep(self.random.choice([0.0, 1.0]))
        plan = self.plan(ranks=range(WORLD))
        plan.lost_nodes.add(node)
        self.stage.do(plan)

    def kill_kernel(self) -> None:
        rank = self.random.randrange(WORLD)
        plan = self.plan(pace=self.random.uniform(0, 2), ranks=range(WORLD))
        self.stage.start(plan)
        time.sleep(self.random.uniform(0, 1.5))
        self.stage.kill(f"rank {rank}", self.random.choice([signal.SIGKILL, signal.SIGSEGV]))
        plan.killed_ranks.add(rank)
        self.stage.wait(plan)

    def kill_kernel_while_idle(self) -> None:
        rank = self.random.randrange(WORLD)
        self.stage.kill(f"rank {rank}")
        time.sleep(self.random.choice([0.0, 0.5]))
        plan = self.plan(ranks=range(WORLD))
        plan.killed_ranks.add(rank)
        self.stage.do(plan)

    def kill_manager(self) -> None:
        ending = self.random.choice(["value", "value", "large", "meet"])
        plan = self.plan(pace=self.random.uniform(0, 2), ending=ending)
        if self.random.random() < 0.3:
            plan.fates = {self.random.choice(plan.ranks): self.random.choice(["raises", "exits"])}
        if self.random.random() < 0.2:
            plan = self.plan(ranks=range(WORLD), call=self.random.choice(["@", ">>"]), ending="value", pace=1.0)
        self.stage.start(plan)
        self.stage.send_wait(plan)
        time.sleep(self.random.uniform(0, 1.5) if self.random.random() < 0.7 else self.random.uniform(0, 0.02))
        self.replace_manager([plan])

    def kill_manager_with_a_run_let_go(self) -> None:
        plans = [self.plan(pace=self.random.uniform(0, 1)) for _ in range(2)]
        for plan in plans:
            self.stage.start(plan)
        time.sleep(self.random.uniform(0, 1.5))
        if self.random.random() < 0.3 and not self.stage.too_often("scheduler"):
            self.stage.kill("scheduler")
        self.replace_manager(plans)

    def restart(self) -> None:
        self.stage.restart()
        self.well()

    def release(self) -> None:
        """The notebook ends in order, with a run on; another takes the pool up."""
        plan = self.plan(pace=self.random.uniform(0, 2))
        self.stage.start(plan)
        time.sleep(self.random.uniform(0, 1))
        self.stage.end_manager()
        self.replace_manager([plan])

    # -- parts -------------------------------------------------------------------------------------

    def plan(self, *, ranks: Any = None, ending: str = "value", **more: Any) -> Planned:
        """The next run, by chance where nothing else is said."""
        self.number += 1
        kind = more.pop("kind", None) or self.random.choice(words.KINDS)
        if ranks is None:
            everyone = ending == "meet" or self.random.random() < 0.7
            ranks = range(WORLD) if everyone else self.random.sample(range(WORLD), self.random.randrange(1, WORLD))
        more.setdefault("pace", self.random.choice([0.0, 0.0, 0.3]))
        if ending == "meet" and not self.torch:
            ending = "value"
        return Planned(self.number, kind, sorted(ranks), ending=ending, **more)

    def mortal(self) -> int:
        """A rank that may die: in the steady part the first ones live on."""
        return self.random.randrange(2 if self.is_steady else 0, WORLD)

    def replace_manager(self, plans: list[Planned]) -> None:
        self.stage.replace_manager(plans, pause=self.random.choice([0.0, 0.0, 1.0]))
