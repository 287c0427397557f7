"""The programs of docs/calls.md on a local pool. See `call_loop` and `patterns`."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import as_completed

import patterns
from call_loop import Job, serve
from patterns import Policy, Question

import sky_jupyter as sky

rollout = sky.function(patterns.rollout)
loss_after_training = sky.function(patterns.loss_after_training)


@sky.function
def load(size: int) -> None:
    """Keep a model on this rank."""
    global model  # noqa: PLW0603 - the rank's own
    model = patterns.make_model(size)


@sky.function
def right_answers(questions: list[Question]) -> int:
    """Return how many of this rank's share the model answers."""
    return patterns.right_answers(model, sky.shard(questions))  # type: ignore[name-defined]


@sky.function
def work(steps: int) -> None:
    """Send gradients to the server, each of the newest weight."""
    weights, gradients = sky.dict("weights"), sky.queue("gradients", maxsize=1)
    noise = random.Random(sky.instance_info().rank)
    for _ in range(steps):
        gradients.put(patterns.gradient(weights["w"], noise))


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    pool = ended.enter_context(sky.Compute(nodes=ranks))

    def rollouts(times: int, _: bytes) -> None:
        def rewards(policies: list[Policy], seed: int) -> list[float]:
            return list(sky.gather(*(rollout(policy, seed) for policy in policies)) >> pool)

        patterns.search(times, rewards)

    def evaluation(times: int, _: bytes) -> None:
        load(patterns.MODEL) @ pool
        for _time in range(times):
            assert sum(right_answers(patterns.QUESTIONS) @ pool) == patterns.RIGHT

    def sweep(times: int, _: bytes) -> None:
        for _time in range(times):
            futures = [loss_after_training(rate) > pool for rate in patterns.RATES]
            assert any(patterns.is_good(future.result()) for future in as_completed(futures))
            for future in futures:
                future.cancel()

    def server(times: int, _: bytes) -> None:
        weights, gradients = pool.dict("weights"), pool.queue("gradients", maxsize=1)
        for _time in range(times):
            weights["w"] = 0.0
            workers = [work(patterns.STEPS).on(rank) > pool for rank in range(ranks)]
            for _step in range(patterns.STEPS * ranks):
                weights["w"] -= 0.3 * gradients.get()
            for worker in workers:
                worker.result()
            assert patterns.is_learned(weights["w"])

    load(patterns.MODEL) @ pool
    return {"rollouts": rollouts, "evaluation": evaluation, "sweep": sweep, "server": server}


if __name__ == "__main__":
    serve(start, ended.close)
