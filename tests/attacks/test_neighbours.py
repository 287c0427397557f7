"""Another user of a machine that ranks are on: gets nothing, hangs nobody and is not heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from tests.attacks import neighbours
from tests.pool.pools import local_pool, run
from tests.took import Took

# At the most an alert of TLS.
REFUSALS = ("", "15")
MEBI = 1 << 20


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as made:
        yield made


def listening_beside_control(pool: Pool) -> dict[tuple[str, int], str]:
    """Where others than the pool's control plane listen."""
    return {place: who for place, who in neighbours.listening(pool).items() if who not in ("scheduler", "agent")}


def test_without_a_framework_only_the_scheduler_and_the_agents_listen(pool: Pool) -> None:
    run(pool, "import multiprocessing, asyncio, IPython; 1")
    assert listening_beside_control(pool) == {}
    assert len(neighbours.listening(pool)) == 1 + pool.spec.nodes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_frameworks_listen_on_the_pools_own_address(kind: str) -> None:
    pytest.importorskip(kind, reason=f"needs the extra {kind}")
    with local_pool(plugins=(getattr(sky.plugins, kind)(),)) as pool:
        found = neighbours.listening(pool)
        assert {address.removeprefix("::ffff:") for address, _ in found} == {"127.0.0.1"}
        # Nothing listens there but what the framework opens in ranks.
        assert set(found.values()) <= {"scheduler", "agent", "rank0", "rank1"}


@neighbours.needs_root
@pytest.mark.root
def test_another_user_gets_nothing_at_any_socket_and_from_any_file(pool: Pool, took: Took) -> None:
    run(pool, "print(1)")
    sockets = neighbours.sockets(pool)
    assert not [name for name in sockets if not name.startswith("/")], "abstract sockets have no owner"
    assert [name for name in sockets if name.endswith("-forks")]
    places = [("tcp", place) for place in neighbours.listening(pool)]
    places += [("unix", name) for name in sockets]
    places += [("file", str(path)) for path in neighbours.files(pool)]
    for place, (what, text) in neighbours.tried_by_neighbour(places).items():
        if place.startswith("tcp"):
            assert what != "got" or text[:2] in REFUSALS, (place, text)
        else:
            assert what == "PermissionError", (place, what, text)
    assert run(pool, "40 + 2").values == [42, 42]
    took.row(
        "another user of the machine connects to all that a pool listens on, and opens its sockets and files",
        see="nothing: that user is refused; no rank listens on a port of the network, but where a framework does",
        kept="everything",
    )


FORKED = {
    "a pool of processes": """
import multiprocessing
def say(number):
    print(f"child {number}\\n", end="")
with multiprocessing.get_context("fork").Pool(2) as several:
    several.map(say, range(3), chunksize=1)
""",
    "a fork": """
import os
for number in range(3):
    if not (child := os.fork()):
        print(f"child {number}\\n", end="")
        os._exit(0)
    os.waitpid(child, 0)
""",
    "a fork from another folder": """
import os
for number in range(3):
    if not (child := os.fork()):
        os.chdir("/")
        print(f"child {number}\\n", end="", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
""",
}


@pytest.mark.parametrize("how", FORKED)
def test_what_forked_children_of_a_cell_print_is_shown(pool: Pool, how: str) -> None:
    result = run(pool, FORKED[how] + "import time\ntime.sleep(0.5)")
    for rank in result.ranks:
        assert sorted(result.stdout(rank).split("\n")) == ["", "child 0", "child 1", "child 2"]


# What the thread that sends output does in the midst of its work.
PRINTED = {
    "python": 'print("x" * size, file=sys.__stderr__)',
    "native": 'at = 0\n    while at < size: at += os.write(2, b"x" * (size - at))',
    "many": 'for _ in range(size >> 10): print("x" * 1023, file=sys.__stderr__, flush=True)',
}


@pytest.mark.parametrize("how", PRINTED)
def test_a_run_ends_whose_sending_thread_prints_to_the_captured_outputs(pool: Pool, how: str, took: Took) -> None:
    code = f"""
import os, sys
def spill(size={32 * MEBI}):
    {PRINTED[how]}
get_ipython().kernel.iopub_thread.schedule(spill)
print("after")
40 + 2
"""
    result = run(pool, code, ranks=[1])
    assert result.values == [42]
    assert result.stdout(1) == "after\n"
    assert run(pool, "40 + 2").values == [42, 42]
    took.row(
        "a rank's thread that sends output prints without end itself (a `__del__` that a collection runs there)",
        see="all of it",
        kept="everything",
    )
