"""Small calls through a local pool, or one of the hosts that SKY_BENCHMARK_HOSTS names. See `call_loop`."""

from __future__ import annotations

import contextlib
import os

from call_loop import Job, serve

import sky_jupyter as sky


@sky.function
def echo(given: bytes) -> bytes:
    """Return what is given."""
    return given


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    places = os.environ.get("SKY_BENCHMARK_HOSTS")
    provider = sky.SSH(places, offline=True) if places else sky.Local()
    pool = ended.enter_context(sky.Compute(provider=provider, nodes=ranks, options=sky.Options(crowded=True)))
    echo(b"") @ pool

    def one(times: int, given: bytes) -> None:
        for _ in range(times):
            echo(given) >> pool

    def all_of_them(times: int, given: bytes) -> None:
        for _ in range(times):
            echo(given) @ pool

    def futures(times: int, given: bytes) -> None:
        for future in [echo(given) > pool for _ in range(times)]:
            future.result()

    def gather(times: int, given: bytes) -> None:
        sky.gather(*(echo(given) for _ in range(times))) >> pool

    def mapped(times: int, given: bytes) -> None:
        list(pool.map(echo, [given] * times))

    return {"one": one, "all": all_of_them, "futures": futures, "gather": gather, "map": mapped}


if __name__ == "__main__":
    serve(start, ended.close)
