"""A program that has a pool, and forks that use it: ``python -m tests.attacks.forks``; one JSON line for each use."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import sky_jupyter as sky

NAME = "forked"


@sky.function
def double(x: int) -> int:
    return 2 * x


def own() -> Any:
    """A pool that the fork makes for itself is its own."""
    with sky.Compute(nodes=1, name="own") as pool:
        return double(21) >> pool


def uses(pool: Any) -> dict[str, Callable[[], Any]]:
    """What a fork may try, by name."""
    return {
        "call": lambda: double(1) >> pool,
        "current": lambda: double(1) >> sky.sky,
        "broadcast": lambda: double(1) @ pool,
        "future": lambda: len([(double(1) > pool).result()]),
        "map": lambda: list(pool.map(double, [1, 2])),
        "gather": lambda: sky.gather(double(1), double(2)) >> pool,
        "shared": lambda: sky.dict("d").update(a=1),
        "cell": lambda: cell("%%sky\n1"),
        "names": lambda: cell("%sky names"),
        "where": lambda: cell("%sky where"),
        "restart": lambda: cell("%sky restart"),
        "resize": lambda: pool.resize(2),
        "get": lambda: pool.get("x"),
        "put": lambda: pool.put(__file__, "y"),
        "pull": lambda: pool.pull("x"),
        "dask": lambda: pool.dask,
    }


def ends(pool: Any) -> dict[str, Callable[[], Any]]:
    """What would end it: the fork's own business is only to forget it."""
    return {"close": pool.close, "block": lambda: pool.__exit__(None, None, None), "own": own}


def cell(code: str) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance().run_cell(code).raise_error()


def use(name: str, what: Callable[[], Any]) -> None:
    try:
        told = {"value": what()}
    except BaseException as error:
        told = {"error": type(error).__name__, "text": str(error)}
    print(f"\n{json.dumps({'use': name, **told})}", flush=True)


def main() -> None:
    from IPython.testing.globalipapp import start_ipython

    shell = start_ipython()
    with sky.Compute(nodes=1, name=NAME) as pool:
        shell.run_cell("%load_ext sky_jupyter")
        print(json.dumps({"owner": os.getpid()}), flush=True)
        for name, what in {**uses(pool), **ends(pool)}.items():
            child = multiprocessing.get_context("fork").Process(target=use, args=(name, what))
            child.start()
            child.join()
        use("here", lambda: double(21) >> pool)


if __name__ == "__main__":
    main()
