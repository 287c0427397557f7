"""Where the ranks are, whatever they are doing, and what the pool says by itself of a run that hangs."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sky_jupyter as sky
from sky_jupyter.node.agent import stack_sampling
from sky_jupyter.node.kernel import stack_dump
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.hang_detector import verdict
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.pool.runs.stacks import StackReport, read
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from sky_jupyter.util.text import plain
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually
from tests.worlds import COLLECTIVES, some

pytestmark = pytest.mark.usefixtures("separate_agents")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as pool:
        yield pool


@contextmanager
def running(pool: Pool, code: str, listener: Callable[[Event], None] = lambda event: None) -> Iterator[Run]:
    """A cell that is on, and interrupted afterwards; kernels that do not heed that are replaced."""
    current = begin(pool, code, listener=listener, count=5)
    try:
        yield current
    finally:
        if current.left:
            pool.interrupt(current)
            # Where ranks wait for each other, their collective is broken after a while.
            if not eventually(lambda: not current.left, 12 if pool.supervisor.together else 2):
                pool.interrupt(current, hard=True)
        with suppress(CellError):
            pool.attend(current)
        pool.settle()


def seen(pool: Pool, condition: Callable[[str], bool], patience: float = 60.0, within: float = 0.8) -> str:
    """The text of `where` once it fulfils a condition."""
    end = time.monotonic() + patience
    while True:
        text = str(pool.where(within))
        if condition(text):
            return text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def whole(pool: Pool) -> StackReport:
    """What `where` finds once it has the stacks of all: on a busy machine it waits for none."""
    found = [pool.where()]
    assert eventually(lambda: all(place.frames for place in found[-1].places) or found.append(pool.where()))
    return found[-1]


@pytest.mark.timing
def test_an_answer_comes_in_a_second(pool: Pool) -> None:
    with running(pool, "import time; time.sleep(600)"):
        began = time.monotonic()
        pool.where(0.8)
        assert time.monotonic() - began < 1.0


BUSY = {
    "sleeping": ("import time\ntime.sleep(600)", "sleep at `time.sleep(600)` (Cell In[5], line 2)"),
    "looping": ("def spin():\n    while True: pass\nspin()", "compute in spin (Cell In[5], line 2)"),
    "in an expression that holds the GIL": (
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        "compute at `re.match(r'(a+)+$', 'a' * 40 + 'b')` (Cell In[5], line 2)",
    ),
    "in a sum that holds the GIL": ("sum(range(10**12))", "compute at `sum(range(10**12))` (Cell In[5], line 1)"),
    "asleep in C with the GIL": (
        # Without py-spy, a look ends such a sleep.
        "import ctypes\nwhile True: ctypes.PyDLL(None).usleep(5_000_000)",
        "at `while True: ctypes.PyDLL(None).usleep(5_000_000)` (Cell In[5], line 2)",
    ),
    "waiting for a subprocess": ("import subprocess\nsubprocess.run(['sleep', '600'])", "subprocess.py:"),
    "joining a thread": (
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(99,), daemon=True)\nt.start()\nt.join()",
        "at `t.join()` (Cell In[5], line 4)",
    ),
    "awaiting": ("import asyncio\nawait asyncio.sleep(100)", "wait in the event loop (await)"),
    "deep in a recursion": (
        "import time\ndef deep(n):\n    if n: deep(n - 1)\n    time.sleep(600)\ndeep(150)",
        "sleep in deep (Cell In[5], line 4)",
    ),
}


@pytest.mark.parametrize(("code", "expected"), BUSY.values(), ids=list(BUSY))
def test_where_tells_the_line_whatever_the_ranks_are_doing(pool: Pool, code: str, expected: str) -> None:
    if "deep" in code and stack_sampling.spy_path() is None:
        pytest.skip("needs py-spy: the interpreter writes 100 frames at most")
    with running(pool, code):
        # The ranks have the same stack, so they are one group.
        text = seen(pool, lambda text: expected in text and text.startswith("ranks 0-1 "))
        assert "elsewhere" not in text


def has_names() -> bool:
    """Whether this interpreter has the names of all of its functions; Debian strips those that it does not export."""
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))
    shared = sysconfig.get_config_var("Py_ENABLE_SHARED") and library.exists()
    return b".symtab" in Path(library if shared else os.path.realpath(sys.executable)).read_bytes()


SQL = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
needs_names = pytest.mark.skipif(
    not has_names(), reason="this interpreter was stripped of its names, as Debian's; run it with one that was not"
)


@pytest.mark.parametrize(
    ("code", "native"),
    [
        pytest.param("import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", r"in C: .*sre", marks=needs_names),
        (f"import sqlite3; sqlite3.connect(':memory:').execute({SQL!r}).fetchall()", r"in C: .*sqlite3_step"),
        ("import ctypes; ctypes.PyDLL(None).usleep(60_000_000)", r"in C: .*nanosleep"),
        ("import numpy; numpy.linalg.svd(numpy.ones((4000, 4000)) + numpy.eye(4000))", r"in C: .*(blas|umath|lapack)"),
    ],
    ids=["in the regular expression machine", "in SQLite", "in the C library", "in LAPACK"],
)
def test_the_native_frame_is_named(pool: Pool, code: str, native: str) -> None:
    if stack_sampling.spy_path() is None:
        pytest.skip("needs py-spy")
    with running(pool, code):
        # On a busy machine, reading the names of a large library takes longer than a person waits.
        seen(pool, lambda text: re.search(native, text) is not None, within=5)


@pytest.mark.slow
def test_without_py_spy_the_line_that_called_into_c_is_told() -> None:
    with local_pool(nodes=1, image=Image(env={"SKY_PY_SPY": ""})) as pool:
        for code in ("sum(range(10**12))", "import time; time.sleep(600)"):
            with running(pool, code):
                text = seen(pool, lambda text: f"`{code}` (Cell In[5], line 1)" in text)  # noqa: B023
        assert "in C:" not in text


def test_a_look_does_not_end_a_sleep_in_c(pool: Pool, tmp_path: Path) -> None:
    if stack_sampling.spy_path() is None:
        pytest.skip("needs py-spy: a signal ends it")
    go = tmp_path / "go"
    code = f"""
import ctypes, os, time
sleep, slept = ctypes.CDLL(None).usleep, []
while not os.path.exists({str(go)!r}):
    began = time.monotonic()
    sleep(2_000_000)
    slept.append(time.monotonic() - began)
min(slept)"""
    with running(pool, code) as it:
        for _ in range(3):
            seen(pool, lambda text: "sleep(2_000_000)" in text)
        go.touch()
        assert all(least >= 2.0 for least in pool.attend(it).values)


def test_idle_ranks_and_ranks_that_have_finished_are_told_apart(pool: Pool) -> None:
    seen(pool, lambda text: text == "ranks 0-1 are idle")
    code = "import time, sky_jupyter as sky\nif sky.instance_info().rank == 0:\n    time.sleep(600)"
    with running(pool, code):
        text = seen(pool, lambda text: "rank 1 has finished the cell" in text and "rank 0 sleeps" in text)
        assert text.startswith("rank 0 sleeps at `time.sleep(600)` (Cell In[5], line 3)")
    with running(pool, "import time\ntime.sleep(600)"):
        assert "line 2" in seen(pool, lambda text: "sleep at" in text)


def test_ranks_that_do_not_take_part_are_said_to(pool: Pool) -> None:
    current = begin(pool, "import time; time.sleep(600)", ranks=[1])
    assert "rank 0 does not take part" in seen(pool, lambda text: "rank 1 sleeps" in text)
    pool.interrupt(current)
    with pytest.raises(CellError):
        pool.attend(current)


@pytest.mark.slow
def test_the_rank_that_is_elsewhere_is_marked() -> None:
    code = """
import time, sky_jupyter as sky
def load_batch():
    time.sleep(600)
if sky.instance_info().rank == 1:
    load_batch()
time.sleep(500)
"""
    with local_pool(nodes=2, ranks_per_node=2) as pool, running(pool, code):
        text = seen(pool, lambda text: "ranks 0, 2-3 sleep" in text and "load_batch" in text)
        assert text.splitlines()[0].startswith("ranks 0, 2-3 sleep at `time.sleep(500)` (Cell In[5], line 6)")
        assert "elsewhere: rank 1 sleeps in load_batch (Cell In[5], line 3)" in text
        where = whole(pool)
        assert [(group.ranks, group.elsewhere) for group in where.groups] == [([0, 2, 3], False), ([1], True)]
        assert where.summary() == (
            "ranks 0, 2-3 sleep at `time.sleep(500)` (Cell In[5], line 6); rank 1 sleeps in load_batch (line 3)"
        )


def test_a_stopped_process_and_a_stopped_agent_keep_no_other_answer_back(pool: Pool) -> None:
    with running(pool, "import time; time.sleep(600)"):
        seen(pool, lambda text: "ranks 0-1 sleep" in text)
        status = pool.status()
        kernel, agent = status[0]["ranks"][0]["pid"], status[1]["pid"]
        os.kill(kernel, signal.SIGSTOP)
        try:
            text = seen(pool, lambda text: "rank 0 is stopped (SIGSTOP)" in text)
            assert "rank 1 sleeps" in text
        finally:
            os.kill(kernel, signal.SIGCONT)
        os.kill(agent, signal.SIGSTOP)
        try:
            text = seen(pool, lambda text: "rank 1 is on a node whose agent did not answer in " in text)
            assert "rank 0 sleeps" in text
        finally:
            os.kill(agent, signal.SIGCONT)
        seen(pool, lambda text: "ranks 0-1 sleep" in text)


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "signal.SIG_IGN", "lambda *_: None"])
def test_user_code_that_takes_the_signal_away_is_not_harmed(pool: Pool, handler: str) -> None:
    with running(pool, f"import signal, time\nsignal.signal({stack_dump.LOOK}, {handler})\nwhile True: pass"):
        time.sleep(0.5)
        if stack_sampling.spy_path() is None:
            text = seen(pool, lambda text: "its stack is not known" in text)
            assert "line 3" not in text
            assert "handler" in text
        else:
            # On a busy machine py-spy may be late at first.
            seen(pool, lambda text: "Cell In[5], line 3" in text)
    run(pool, f"import faulthandler\nfaulthandler.unregister({stack_dump.LOOK})")
    # The kernels are new afterwards, with their own handler.
    pool.restart()
    seen(pool, lambda text: text == "ranks 0-1 are idle")


def test_frames_of_the_kernel_are_left_out_and_cells_keep_their_names_in_tracebacks(pool: Pool) -> None:
    run(pool, "def fail():\n    raise ValueError('boom')", count=3)
    with pytest.raises(CellError) as caught:
        run(pool, "fail()", count=4)
    text = plain("\n".join(caught.value._render_traceback_()))
    assert "Cell In[4], line 1" in text
    assert "Cell In[3], line 2" in text
    source = run(pool, "import inspect\ninspect.getsource(fail), fail.__code__.co_filename")
    assert source.head[0] == "def fail():\n    raise ValueError('boom')\n"
    # Equal on all ranks, so that equal stacks are equal.
    assert len({value[1] for value in source.values}) == 1
    with running(pool, "import time\ntime.sleep(600)"):
        where = whole(pool)
        assert all("ipykernel" not in frame[0] for place in where.places for frame in place.frames)
        assert [frame[2] for frame in where.places[0].frames] == ["<module>"]


def test_a_function_call_tells_where_it_is(pool: Pool) -> None:
    import threading

    @sky.function
    def slow() -> None:
        import time

        time.sleep(600)

    def call() -> None:
        with pytest.raises(CellError):
            slow() @ pool

    thread = threading.Thread(target=call)
    thread.start()
    try:
        seen(pool, lambda text: "ranks 0-1 sleep in slow" in text)
    finally:
        pool.interrupt()
        thread.join(60)


# -- the watch -------------------------------------------------------------------------------------


JAX = """
import time, jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
rank, n = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
add = jax.jit(jax.shard_map(lambda part: jax.lax.psum(part, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
def total(mine):
    everyones = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), mine)
    return add(everyones)
def gather(x): return multihost_utils.process_allgather(x)
def load_batch(seconds=600): time.sleep(seconds)
gather(np.ones(2)); float(total(np.ones(1))[0])
"""
TORCH = """
import time, torch, torch.distributed as dist
rank, n = dist.get_rank(), dist.get_world_size()
def total(mine):
    mine = torch.as_tensor(mine)
    dist.all_reduce(mine)
    return mine
def gather(x):
    out = [torch.zeros(len(x)) for _ in range(n)]
    dist.all_gather(out, torch.as_tensor(x))
    return out
def load_batch(seconds=600): time.sleep(seconds)
np = torch
total(torch.ones(2)); gather(torch.ones(2))
"""
SETUP = {"jax": JAX, "torch": TORCH}
SILENCE = 1.5


@pytest.fixture(scope="module", params=some([("jax", 4), ("torch", 2)], COLLECTIVES))
def together(request: pytest.FixtureRequest) -> Iterator[tuple[str, Pool]]:
    kind, nodes = request.param
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"needs the extra {kind}")
    with local_pool(nodes=nodes, plugins=(getattr(sky.plugins, kind)(),)) as pool:
        pool.supervisor.silence = SILENCE
        yield kind, pool


@contextmanager
def watched(together: tuple[str, Pool], code: str) -> Iterator[tuple[Pool, list[str]]]:
    """A cell that is on, after the set-up of its framework, and the notices of its run."""
    kind, pool = together
    # What an earlier hang broke is set up again; compiled functions and meshes of before are of no use.
    run(pool, SETUP[kind], count=4)
    notices: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            notices.append(event.text)

    with running(pool, code, listen):
        yield pool, notices
    # Whatever hung has been freed: the next cell works, and nothing was lost.
    values = run(pool, SETUP[kind] + "\nfloat(total(np.ones(1))[0])").values
    assert values == [float(pool.spec.world_size)] * pool.spec.world_size


def told(notices: list[str], patience: float = 90.0) -> str:
    assert eventually(lambda: bool(notices), patience), "nothing was said of a run that hangs"
    return notices[0]


@pytest.mark.slow
def test_a_rank_that_has_not_entered_a_collective_is_told(together: tuple[str, Pool]) -> None:
    code = "if rank == 1:\n    load_batch()\ngather(np.ones(2))"
    with watched(together, code) as (pool, notices):
        text = told(notices)
        rest = "rank 0 waits" if pool.spec.world_size == 2 else "ranks 0, 2-3 wait"
        name = "process_allgather" if together[0] == "jax" else "all_gather"
        assert text.startswith(f"{rest} in {name} (Cell In[5], line 3); rank 1 ")
        assert "the button Where shows the stacks" in text
        # On a busy machine there may have been no time to read the stack of a rank that waits in no collective.
        assert "sleeps in load_batch (line 2)" in text or "its stack is not known" in text
        assert f"{rest} in {name}" in seen(pool, lambda text: name in text)


def test_a_rank_that_leaves_the_loop_early_is_told(together: tuple[str, Pool]) -> None:
    code = "for step in range(2 if rank == n - 1 else 3):\n    float(total(np.ones(1))[0])"
    with watched(together, code) as (pool, notices):
        text = told(notices)
        last = pool.spec.world_size - 1
        assert text.startswith("rank 0 waits " if last == 1 else f"ranks 0-{last - 1} wait ")
        assert f"; rank {last} has finished the cell" in text


@pytest.mark.slow
def test_different_shapes_are_told(together: tuple[str, Pool]) -> None:
    # Who waits, and who goes on with a wrong value, is gloo's choice.
    code = "for _ in range(3):\n    float(total(np.ones(4 if rank == 1 else 2))[0])"
    with watched(together, code) as (_, notices):
        text = told(notices)
        assert re.search(r"\Aranks? [\d, -]+ waits? (in|at) .* \(Cell In\[5\], line 2\)", text), text
        assert re.search(r"has finished|have finished|nothing moves", text), text


@pytest.mark.slow
def test_branches_in_another_order_are_told(together: tuple[str, Pool]) -> None:
    # As a set of strings orders them where each process hashes with a salt of its own.
    code = """
names = ["weights", "bias"] if rank != 1 else ["bias", "weights"]
for name in names:
    if name == "bias":
        float(total(np.ones(4))[0])
    else:
        gather(np.ones(300_000))
"""
    with watched(together, code) as (_, notices):
        assert re.match(r"ranks? [\d, -]+ waits? (in|at) ", told(notices))


@pytest.mark.slow
def test_a_long_computation_is_no_hang(together: tuple[str, Pool]) -> None:
    # After each line of output it is silent for longer than a look and its confirmation take.
    code = """
print("in Python", flush=True)
end = time.time() + 4
while time.time() < end: pass
print("in the framework", flush=True)
end = time.time() + 4
while time.time() < end: np.ones((500, 500)) @ np.ones((500, 500))
print("ranks that meet again and again, and mostly wait for the slowest", flush=True)
for _ in range(8):
    if rank == 0: load_batch(0.5)
    gather(np.ones(2))
print("one sleeps, with nobody waiting for it", flush=True)
if rank == 0: load_batch(4)
"""
    with watched(together, code) as (pool, notices):
        assert eventually(lambda: not pool.current.left, 60)
        assert notices == []


def test_a_run_that_prints_is_not_looked_at(together: tuple[str, Pool]) -> None:
    code = """
if rank == 0:
    for _ in range(20):
        print('.', flush=True)
        load_batch(0.3)
gather(np.ones(2))
"""
    with watched(together, code) as (pool, notices):
        assert eventually(lambda: not pool.current.left, 60)
        assert notices == []


# -- reading the answers ---------------------------------------------------------------------------

SPEC = PoolSpec(provider=Local(), nodes=2, plugins=(sky.plugins.jax(), sky.plugins.torch()))
CELL = stack_dump.cell_file("x = f()", 3)
GATHER = [["/v/site-packages/jax/experimental/multihost_utils.py", 159, "process_allgather"], [CELL, 1, "<module>"]]


def report(frames: object = (), **more: object) -> dict[str, object]:
    stuck = {"ran": [1.0, 1.0], "switches": [5, 5], "state": "S", "at": "cell", "cpu": 0.0, "main_cpu": 0.0}
    return {"pid": 7, "busy_with": "r", "frames": frames, "note": "", **stuck, **more}


def looked_at(*reports: dict[str, object]) -> StackReport:
    run = Run("r", {0: 0, 1: 1}, lambda event: None)
    run.code, run.count = "x = f()", 3
    answers = {node: {"ranks": {node: item}} for node, item in enumerate(reports)}
    return read(SPEC, answers, run, {0: "running", 1: "running"})


@pytest.mark.parametrize(
    ("first", "second", "hangs"),
    [
        ([report(GATHER)] * 2, [report(GATHER)] * 2, True),
        ([report(GATHER), report([[CELL, 1, "<module>"]])], [report(GATHER), report([[CELL, 1, "f"]])], True),
        # A main thread ran in between, or one of the ranks came or went.
        ([report(GATHER)] * 2, [report(GATHER), report(GATHER, ran=[1.1, 1.1])], False),
        ([report(GATHER)] * 2, [report(GATHER), report(GATHER, switches=[50, 50])], False),
        ([report(GATHER)] * 2, [report(GATHER), report([[CELL, 1, "<module>"]])], False),
        ([report(GATHER), report([[CELL, 1, "f"]])], [report(GATHER)] * 2, False),
        # Nobody waits in a collective.
        ([report([[CELL, 1, "f"]])] * 2, [report([[CELL, 1, "f"]])] * 2, False),
        # All wait for what computes in another thread.
        ([report(GATHER, cpu=0.9)] * 2, [report(GATHER, cpu=0.9)] * 2, False),
    ],
)
def test_only_ranks_that_stay_where_they_wait_are_a_hang(
    first: list[dict[str, object]], second: list[dict[str, object]], hangs: bool
) -> None:
    assert bool(verdict(looked_at(*first), looked_at(*second))) == hangs


def test_a_wait_inside_compiled_code_is_told_by_its_line() -> None:
    direct = report([[CELL, 1, "<module>"]], waits_in="futex_wait_queue")
    asleep = report([[CELL, 1, "<module>"]], waits_in="hrtimer_nanosleep")
    where = looked_at(direct, asleep)
    assert where.summary() == ("rank 0 waits at `x = f()` (Cell In[3], line 1); rank 1 sleeps at `x = f()` (line 1)")


def test_ranks_at_one_line_of_a_sent_file_are_together_whatever_folder_their_nodes_have_it_in() -> None:
    places = [[[f"/tmp/sky-06fae166-{node}/code/train.py", 2, "<module>"]] for node in ("d412f0e9", "t7_x1z9q")]
    assert looked_at(*map(report, places)).summary() == "ranks 0-1 are at train.py:2"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(0, 2), inner),
    max_leaves=12,
)
fields = st.sampled_from(
    [
        "pid",
        "busy_with",
        "frames",
        "native",
        "native_note",
        "note",
        "state",
        "waits_in",
        "at",
        "cpu",
        "main_cpu",
        "ran",
        "switches",
    ]
)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.integers(0, 2),
        anything
        | st.fixed_dictionaries(
            {
                "ranks": st.dictionaries(
                    st.integers(0, 2),
                    anything | st.dictionaries(fields, anything | st.lists(st.tuples(anything, anything, anything))),
                )
            }
        ),
    )
)
@settings(max_examples=300)
def test_any_answer_of_an_agent_is_read_without_harm(answers: dict[int, object]) -> None:
    where = read(SPEC, answers)
    assert [place.rank for place in where.places] == [0, 1]
    for text in (*str(where).splitlines(), where.summary()):
        assert text.isprintable()
    assert verdict(where, where) is not None


def test_of_ranks_that_were_not_heard_of_it_is_said_how_long_they_were_waited_for() -> None:
    assert "are on a node whose agent did not answer in 2.5 s" in str(read(SPEC, {}, waited={0: 2.54, 1: 2.54}))
