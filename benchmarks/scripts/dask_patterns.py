"""The programs of docs/calls.md through Dask's client on a LocalCluster. See `call_loop` and `patterns`."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import patterns
from call_loop import Job, serve
from distributed import Client, LocalCluster, Queue, Variable, as_completed
from patterns import Policy, Question


def load(size: int, dask_worker: Any) -> None:
    """Keep a model on a worker."""
    dask_worker.sky_model = patterns.make_model(size)


def right_answers(questions: list[Question], ranks: int, dask_worker: Any) -> int:
    """Return how many of a worker's share the model answers."""
    return patterns.right_answers(dask_worker.sky_model, questions[int(dask_worker.name) :: ranks])


def work(rank: int, steps: int) -> None:
    """Send gradients to the server, each of the newest weight."""
    weight, gradients = Variable("w"), Queue("gradients", maxsize=1)
    noise = random.Random(rank)
    for _ in range(steps):
        gradients.put(patterns.gradient(weight.get(), noise))


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    cluster = ended.enter_context(LocalCluster(n_workers=ranks, threads_per_worker=1, dashboard_address=None))
    client = ended.enter_context(Client(cluster))

    def rollouts(times: int, _: bytes) -> None:
        def rewards(policies: list[Policy], seed: int) -> list[float]:
            return list(client.gather(client.map(patterns.rollout, policies, seed=seed, pure=False)))

        patterns.search(times, rewards)

    def evaluation(times: int, _: bytes) -> None:
        client.run(load, patterns.MODEL)
        for _time in range(times):
            assert sum(client.run(right_answers, patterns.QUESTIONS, ranks).values()) == patterns.RIGHT

    def sweep(times: int, _: bytes) -> None:
        for _time in range(times):
            futures = client.map(patterns.loss_after_training, patterns.RATES, pure=False)
            assert any(patterns.is_good(future.result()) for future in as_completed(futures))
            client.cancel(futures)

    def server(times: int, _: bytes) -> None:
        weight, gradients = Variable("w", client=client), Queue("gradients", client=client, maxsize=1)
        for _time in range(times):
            weight.set(0.0)
            workers = client.map(work, range(ranks), steps=patterns.STEPS, pure=False)
            for _step in range(patterns.STEPS * ranks):
                weight.set(weight.get() - 0.3 * gradients.get())
            client.gather(workers)
            assert patterns.is_learned(weight.get())

    evaluation(1, b"")
    return {"rollouts": rollouts, "evaluation": evaluation, "sweep": sweep, "server": server}


if __name__ == "__main__":
    serve(start, ended.close)
