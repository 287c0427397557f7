"""What the user's interrupt does to ranks, whatever they are in."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankInterrupted
from sky_jupyter.pool.runs.run import Run
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually, kernel_of
from tests.took import Took

HEEDED = {
    "a Python loop": "while True: pass",
    "time.sleep": "time.sleep(600)",
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a thread join": "thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)\n"
    "thread.start(); thread.join()",
    "a socket": "mine, other = socket.socketpair(); mine.recv(1)",
    "subprocess.run": "subprocess.run(['sleep', '600'])",
    "await asyncio.sleep": "await asyncio.sleep(600)",
    "a Python loop in a cell that awaits": "await asyncio.sleep(0)\nwhile True: pass",
    "a regular expression that backtracks": "re.match('(a+)+$', 'a' * 60 + 'b')",
}
# On a quiet machine each takes far longer than the test waits.
DEAF = {
    "LAPACK's svd": "numpy.linalg.svd(matrix)",
    "sum(range(10**11)), which holds the GIL": "sum(range(10**11))",
}
IMPORTS = (
    "import asyncio, re, socket, subprocess, threading, time, sky_jupyter as sky\nrank = sky.instance_info().rank\n"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        yield pool


def in_it(current: Run) -> bool:
    return all("in it" in "".join(outcome.stdout) for outcome in current.outcomes.values())


def parents(kernels: list[psutil.Process]) -> int:
    """How many of these have processes of their own."""
    while True:
        # Somebody else's process may end while psutil looks at all of them.
        with contextlib.suppress(psutil.NoSuchProcess):
            return sum(bool(kernel.children(recursive=True)) for kernel in kernels)


def start(pool: Pool, code: str, listener: Callable[[Any], None] = lambda event: None) -> Run:
    """Begin a cell, and wait until every rank is at its last statement."""
    pool.settle()
    run(pool, IMPORTS + "kept = rank")
    current = begin(pool, f"print('in it', flush=True)\n{code}", listener=listener)
    assert eventually(functools.partial(in_it, current))
    time.sleep(0.5)
    return current


@pytest.mark.parametrize("where", HEEDED)
def test_an_interrupt_reaches_a_rank_in(pool: Pool, where: str, took: Took) -> None:
    current = start(pool, HEEDED[where])
    kernels = [kernel_of(pool, rank) for rank in (0, 1)]
    began = time.monotonic()
    pool.interrupt(current)
    assert eventually(lambda: not current.left)
    seconds = time.monotonic() - began
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    assert {type(error) for error in caught.value.errors.values()} == {RankInterrupted}
    assert eventually(lambda: parents(kernels) == 0)
    assert pool.take_restarted() == set()
    assert run(pool, "kept").values == [0, 1]
    took.row(
        "the user interrupts a rank that is in code which heeds it",
        see="KeyboardInterrupt at once",
        kept="every name",
        on=where,
        stopped=seconds,
    )


@pytest.mark.parametrize("where", DEAF)
def test_what_cannot_be_interrupted_is_told_and_a_second_press_replaces_it(pool: Pool, where: str, took: Took) -> None:
    if "numpy" in DEAF[where]:
        pytest.importorskip("numpy")
    told: list[tuple[float, str]] = []

    def listen(event: Any) -> None:
        if isinstance(event, NoticeEvent):
            told.append((time.monotonic(), event.text))

    work = DEAF[where]
    if "matrix" in work:
        run(pool, "import numpy; matrix = numpy.random.default_rng(0).normal(size=(6000, 6000))", ranks=[1])
    current = start(pool, f"if rank == 1: {work}\nelse: time.sleep(600)", listen)
    assert eventually(lambda: f"if rank == 1: {work}" in str(pool.where()))
    began = time.monotonic()
    pool.interrupt(current)
    assert eventually(lambda: told)
    assert current.left == [1]
    assert "rank 1 does not respond to the interrupt" in told[0][1]
    assert "interrupt again to replace its kernel" in told[0][1]
    again = time.monotonic()
    pool.interrupt(current, hard=True)
    with pytest.raises(CellError):
        pool.attend(current)
    ended = time.monotonic()
    pool.settle()
    assert pool.take_restarted() == {1}
    assert "a new kernel is made for rank 1" in told[-1][1]
    assert run(pool, "globals().get('kept')").values == [0, None]
    took.row(
        "the user interrupts a rank that is in C code which heeds nothing",
        see=f"`{told[0][1]}`; the second press replaces that kernel",
        kept="every name of the others",
        on=where,
        told=told[0][0] - began,
        replaced=ended - again,
    )


def test_an_interrupt_ends_a_shell_command_and_its_cell(pool: Pool) -> None:
    kernels = [kernel_of(pool, rank) for rank in (0, 1)]
    current = start(pool, "get_ipython().system('sleep 600')\n'after'")
    assert eventually(lambda: parents(kernels) == 2)
    pool.interrupt(current)
    with pytest.raises(CellError):
        pool.attend(current)
    assert [outcome.status for outcome in current.outcomes.values()] == ["interrupted", "interrupted"]
    assert eventually(lambda: parents(kernels) == 0)


# As a slow machine does: it comes when the cell's code is over, and its end is not told yet.
LATE = """
import os, signal, time
kernel = get_ipython().kernel
drain = kernel.drain_native_output
def late():
    kernel.drain_native_output = drain
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    drain()
kernel.drain_native_output = late
"""


@pytest.mark.parametrize("ending", ["kept", "1 / 0", "raise KeyboardInterrupt"])
def test_an_interrupt_that_comes_when_the_cell_is_over_does_not_keep_its_end_from_being_told(
    pool: Pool, ending: str
) -> None:
    run(pool, "kept = 5")
    current = begin(pool, LATE + ending)
    assert eventually(current.over.is_set), current.left
    assert {outcome.status for outcome in current.outcomes.values()} == {
        {"kept": "ok", "1 / 0": "error"}.get(ending, "interrupted")
    }
    assert run(pool, "kept").values == [5, 5]


# As where an interrupt comes in the moment in which `print` asks whether the thread that sends is alive.
ASKED = """
import linecache, sys
thread = sys.stdout.pub_thread.thread
def interrupt(frame, event, _):
    if "lock.acquire(block" in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
        raise KeyboardInterrupt
    return interrupt
sys.settrace(interrupt)
try:
    thread.is_alive()
except KeyboardInterrupt:
    pass
finally:
    sys.settrace(None)
thread.is_alive()
"""


def test_an_interrupt_does_not_part_the_cell_from_the_thread_that_sends_its_output(pool: Pool) -> None:
    assert run(pool, ASKED).values == [True, True]
    assert run(pool, "print('here')").stdout(0) == "here\n"


def test_what_was_printed_before_a_call_that_keeps_the_gil_is_seen_while_it_lasts(pool: Pool) -> None:
    current = begin(pool, "import re; print('in it', flush=True); re.match('(a+)+$', 'a' * 60 + 'b')")
    assert eventually(functools.partial(in_it, current))
    pool.interrupt(current)
    with pytest.raises(CellError):
        pool.attend(current)


NEVER = {
    "jax": (
        "from jax.experimental import multihost_utils\nimport numpy\n"
        "def reduce(): return float(multihost_utils.process_allgather(numpy.array([rank + 1.0])).sum())\n",
        sky.plugins.jax,
    ),
    "torch": (
        "import torch, torch.distributed as dist\n"
        "def reduce():\n    total = torch.tensor([rank + 1.0]); dist.all_reduce(total); return total.item()\n",
        sky.plugins.torch,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEVER)
def test_an_interrupt_reaches_a_collective_that_never_completes(framework: str, took: Took) -> None:
    pytest.importorskip(framework, reason=f"needs the extra {framework}")
    code, plugin = NEVER[framework]
    with local_pool(plugins=(plugin(),)) as pool:
        run(pool, IMPORTS + code + "reduce()")
        current = start(pool, "if rank == 1: reduce()\nelse: time.sleep(600)")
        began = time.monotonic()
        pool.interrupt(current)
        assert eventually(lambda: not current.left)
        seconds = time.monotonic() - began
        with pytest.raises(CellError):
            pool.attend(current)
        assert run(pool, "kept, reduce()").values == [(0, 3.0), (1, 3.0)]
        assert pool.take_restarted() == set()
    took.row(
        "the user interrupts a rank in a collective that never completes",
        see="`freeing rank 1 from process_allgather …; every name is kept`, KeyboardInterrupt, and that it was freed; "
        "what can be lost by a second press is said only where freeing fails, after some 10 s",
        kept="every name",
        on=f"{framework}, 2 ranks",
        stopped=seconds,
    )


# As on a busy machine: what frees a rank comes after what is said of one that heeds nothing.
SLOW = """
from sky_jupyter.plugins.core import rank_resources as machine
broken = machine.break_connections
def break_connections(*args, **options):
    time.sleep(4)
    broken(*args, **options)
machine.break_connections = break_connections
"""


@pytest.mark.slow
def test_a_rank_that_is_being_freed_is_not_called_deaf_and_one_that_computes_is() -> None:
    pytest.importorskip("jax", reason="needs the extra jax")
    code, plugin = NEVER["jax"]
    told: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, NoticeEvent):
            told.append(event.text)

    with local_pool(plugins=(plugin(),)) as pool:
        run(pool, IMPORTS + code + "reduce()" + SLOW)
        current = start(pool, "if rank == 1: reduce()\nelse: time.sleep(600)", listen)
        pool.interrupt(current)
        assert eventually(lambda: not current.left)
        with pytest.raises(CellError):
            pool.attend(current)
        assert told[0] == "freeing rank 1 from process_allgather …; every name is kept"
        assert told[1].startswith("rank 1 freed from a collective; every name is kept")
        assert len(told) == 2
        told.clear()
        current = start(pool, "if rank == 1: sum(range(10**11))\nelse: reduce()", listen)
        pool.interrupt(current)
        # The other is freed, and this one is not: that is said of it alone.
        assert eventually(lambda: any("interrupt again" in text for text in told))
        assert told[0] == "freeing rank 0 from process_allgather …; every name is kept"
        assert told[1].startswith("rank 1 does not respond to the interrupt, in code that cannot be interrupted: ")
        pool.interrupt(current, hard=True)
        with pytest.raises(CellError):
            pool.attend(current)


def test_nothing_that_was_interrupted_is_left() -> None:
    mine = os.getpid()
    assert not [p for p in psutil.Process(mine).children(recursive=True) if p.name() == "sleep"]


def test_however_often_it_is_pressed_no_interrupt_comes_out_of_the_wait(pool: Pool) -> None:
    current = start(pool, "while True:\n    try: time.sleep(600)\n    except KeyboardInterrupt: pass")
    stop = threading.Event()

    def press() -> None:
        while not stop.wait(0.001):
            os.kill(os.getpid(), signal.SIGINT)

    # What comes before and after the wait is this test's.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    presser = threading.Thread(target=press)
    try:
        presser.start()
        assert pool.wait(current) is True
    finally:
        stop.set()
        presser.join()
        signal.signal(signal.SIGINT, before)
    pool.finish(current)
    pool.settle()
    assert pool.take_restarted() == {0, 1}


# An interrupt that comes while a failure is being shown, and one just after it.
SHOWN_LATE = """
import os, signal
def press(): os.kill(os.getpid(), signal.SIGINT)
class Late(Exception):
    def _render_traceback_(self):
        press()
        return ["shown whole"]
shown = get_ipython()._showtraceback
def show(*arguments):
    shown(*arguments)
    if arguments[0] is Late: press()
get_ipython()._showtraceback = show
"""


@pytest.mark.parametrize("wait", ["", "import asyncio; await asyncio.sleep(0)\n"], ids=["plain", "awaits"])
def test_an_interrupt_of_a_cell_that_has_just_failed_takes_nothing_of_its_error(pool: Pool, wait: str) -> None:
    pool.settle()
    run(pool, IMPORTS + "kept = rank" + SHOWN_LATE)
    current = begin(pool, f"{wait}raise Late('why')")
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    assert [(type(error).__name__, str(error)) for error in caught.value.errors.values()] == [("Late", "why")] * 2
    assert ["".join(outcome.stderr) for outcome in current.outcomes.values()] == ["", ""]
    # Of a failure that the cell shows, and does not end with, the cell ends when it was shown.
    with pytest.raises(CellError) as caught:
        run(
            pool,
            f"{wait}try:\n    raise Late('why')\nexcept Late:\n    get_ipython().showtraceback()\nwhile True: pass",
        )
    assert [type(error) for error in caught.value.errors.values()] == [RankInterrupted] * 2
    assert run(pool, "del get_ipython()._showtraceback; kept").values == [0, 1]


# The interrupt comes before the first line of a cell, or after its last.
AROUND = """
import os, signal
shell = get_ipython()
def around(which):
    made = getattr(shell, which)
    def pressed(*arguments, **options):
        setattr(shell, which, made)
        os.kill(os.getpid(), signal.SIGINT)
        return made(*arguments, **options)
    setattr(shell, which, pressed)
"""


@pytest.mark.parametrize("wait", ["", "import asyncio; await asyncio.sleep(0)\n"], ids=["plain", "awaits"])
@pytest.mark.parametrize("step", ["transform_cell", "transform_ast"])
def test_an_interrupt_beside_a_cells_code_is_how_the_cell_ended_and_nothing_that_it_has_shown(
    pool: Pool, step: str, wait: str
) -> None:
    pool.settle()
    run(pool, IMPORTS + AROUND + f"kept = rank; around({step!r})")
    current = begin(pool, f"{wait}print('begun')")
    with pytest.raises(CellError):
        pool.attend(current)
    assert [outcome.status for outcome in current.outcomes.values()] == ["interrupted"] * 2
    assert [("".join(one.stdout), "".join(one.stderr)) for one in current.outcomes.values()] == [("", "")] * 2
    assert run(pool, "kept").values == [0, 1]
