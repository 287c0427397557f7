"""The programs of docs/calls.md through Ray's tasks and actors. See `call_loop` and `patterns`."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import patterns
import ray
from call_loop import Job, serve
from patterns import Policy, Question

rollout: Any = ray.remote(patterns.rollout)
loss_after_training: Any = ray.remote(patterns.loss_after_training)


@ray.remote(num_cpus=0)
class Worker:
    """One process; it keeps the model."""

    def load(self, size: int) -> None:
        self.model = patterns.make_model(size)

    def right_answers(self, questions: list[Question], rank: int, ranks: int) -> int:
        return patterns.right_answers(self.model, questions[rank::ranks])

    def work(self, server: Any, rank: int, steps: int) -> None:
        noise = random.Random(rank)
        for _ in range(steps):
            ray.get(server.add.remote(patterns.gradient(ray.get(server.weight.remote()), noise)))


@ray.remote(num_cpus=0)
class Server:
    """The weight, and what is learned from the gradients."""

    def __init__(self) -> None:
        self.w = 0.0

    def weight(self) -> float:
        return self.w

    def reset(self) -> None:
        self.w = 0.0

    def add(self, gradient: float) -> None:
        self.w -= 0.3 * gradient


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    ray.init(num_cpus=ranks, include_dashboard=False, log_to_driver=False)
    ended.callback(ray.shutdown)
    made: Any = Worker
    workers = [made.remote() for _ in range(ranks)]
    the_server = Server.remote()  # type: ignore[attr-defined]

    def rollouts(times: int, _: bytes) -> None:
        def rewards(policies: list[Policy], seed: int) -> list[float]:
            return list(ray.get([rollout.remote(policy, seed) for policy in policies]))

        patterns.search(times, rewards)

    def evaluation(times: int, _: bytes) -> None:
        ray.get([worker.load.remote(patterns.MODEL) for worker in workers])
        for _time in range(times):
            asked = [worker.right_answers.remote(patterns.QUESTIONS, at, ranks) for at, worker in enumerate(workers)]
            assert sum(ray.get(asked)) == patterns.RIGHT

    def sweep(times: int, _: bytes) -> None:
        # Not cancelled: `ray.cancel` of tasks that are about to end aborts the driver ("Tried to complete task that
        # was not pending", Ray 2.60).
        for _time in range(times):
            left, good = [loss_after_training.remote(rate) for rate in patterns.RATES], False
            while left and not good:
                (done,), left = ray.wait(left)
                good = patterns.is_good(ray.get(done))
            assert good
            ray.wait(left, num_returns=len(left))

    def server(times: int, _: bytes) -> None:
        for _time in range(times):
            ray.get(the_server.reset.remote())
            ray.get([worker.work.remote(the_server, at, patterns.STEPS) for at, worker in enumerate(workers)])
            assert patterns.is_learned(ray.get(the_server.weight.remote()))

    evaluation(1, b"")
    return {"rollouts": rollouts, "evaluation": evaluation, "sweep": sweep, "server": server}


if __name__ == "__main__":
    serve(start, ended.close)
