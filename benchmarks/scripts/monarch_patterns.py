"""The programs of docs/calls.md through PyTorch Monarch's actors. See `call_loop` and `patterns`."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import patterns
from call_loop import Job, serve
from monarch.actor import Actor, current_rank, endpoint, this_host
from patterns import Policy, Question


class Worker(Actor):
    """One process; it keeps the model. All are coroutines, as one that waits for the server has to be."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.model: dict[Question, int] = {}

    @endpoint
    async def rollout(self, policy: Policy, seed: int) -> float:
        return patterns.rollout(policy, seed)

    @endpoint
    async def load(self, size: int) -> None:
        self.model = patterns.make_model(size)

    @endpoint
    async def right_answers(self, questions: list[Question]) -> int:
        return patterns.right_answers(self.model, questions[current_rank().rank :: self.ranks])

    @endpoint
    async def loss(self, rate: float) -> float:
        return patterns.loss_after_training(rate)

    @endpoint
    async def work(self, server: Any, steps: int) -> None:
        noise = random.Random(current_rank().rank)
        for _ in range(steps):
            await server.add.call_one(patterns.gradient(await server.weight.call_one(), noise))


class Server(Actor):
    """The weight, and what is learned from the gradients."""

    def __init__(self) -> None:
        self.w = 0.0

    @endpoint
    def weight(self) -> float:
        return self.w

    @endpoint
    def reset(self) -> None:
        self.w = 0.0

    @endpoint
    def add(self, gradient: float) -> None:
        self.w -= 0.3 * gradient


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    procs: Any = this_host().spawn_procs(per_host={"gpus": ranks})
    ended.callback(lambda: procs.stop().get())
    workers: Any = procs.spawn("workers", Worker, ranks)
    # In a process of its own, as it has to answer while the workers work.
    home: Any = this_host().spawn_procs(per_host={"gpus": 1})
    ended.callback(lambda: home.stop().get())
    the_server: Any = home.spawn("server", Server)
    each = [workers.slice(gpus=rank) for rank in range(ranks)]

    def rollouts(times: int, _: bytes) -> None:
        def rewards(policies: list[Policy], seed: int) -> list[float]:
            futures = [each[at % ranks].rollout.call_one(policy, seed) for at, policy in enumerate(policies)]
            return [future.get() for future in futures]

        patterns.search(times, rewards)

    def evaluation(times: int, _: bytes) -> None:
        workers.load.call(patterns.MODEL).get()
        for _time in range(times):
            answers = workers.right_answers.call(patterns.QUESTIONS).get()
            assert sum(value for _point, value in answers.items()) == patterns.RIGHT

    def sweep(times: int, _: bytes) -> None:
        # Its futures tell in no order of their ends, and cannot be cancelled.
        for _time in range(times):
            futures = [each[at % ranks].loss.call_one(rate) for at, rate in enumerate(patterns.RATES)]
            losses = [future.get() for future in futures]
            assert any(map(patterns.is_good, losses))

    def server(times: int, _: bytes) -> None:
        for _time in range(times):
            the_server.reset.call_one().get()
            workers.work.call(the_server, patterns.STEPS).get()
            assert patterns.is_learned(the_server.weight.call_one().get())

    workers.load.call(patterns.MODEL).get()
    return {"rollouts": rollouts, "evaluation": evaluation, "sweep": sweep, "server": server}


if __name__ == "__main__":
    serve(start, ended.close)
