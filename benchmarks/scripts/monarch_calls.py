"""Small calls through PyTorch Monarch: actors of one process each on this machine. See `call_loop`."""

from __future__ import annotations

import contextlib
from typing import Any

from call_loop import Job, serve
from monarch.actor import Actor, endpoint, this_host


class Small(Actor):
    """An actor whose endpoint returns what it is given."""

    @endpoint
    def echo(self, given: bytes) -> bytes:
        return given


ended = contextlib.ExitStack()


def start(ranks: int) -> dict[str, Job]:
    procs: Any = this_host().spawn_procs(per_host={"gpus": ranks})
    ended.callback(lambda: procs.stop().get())
    actors: Any = procs.spawn("small", Small)
    first = actors.slice(gpus=0)
    actors.echo.call(b"").get()

    def one(times: int, given: bytes) -> None:
        for _ in range(times):
            first.echo.call_one(given).get()

    def all_of_them(times: int, given: bytes) -> None:
        for _ in range(times):
            actors.echo.call(given).get()

    def futures(times: int, given: bytes) -> None:
        each = [actors.slice(gpus=rank) for rank in range(ranks)]
        for future in [each[number % ranks].echo.call_one(given) for number in range(times)]:
            future.get()

    return {"one": one, "all": all_of_them, "futures": futures, "gather": futures, "map": futures}


if __name__ == "__main__":
    serve(start, ended.close)
