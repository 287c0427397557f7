"""Stacks that processes write and py-spy reports: read whole, and without harm whatever they hold."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sky_jupyter.node.agent import stack_sampling
from sky_jupyter.node.kernel import stack_dump
from sky_jupyter.node.system import stopped_processes

PROGRAM = """
import sys, time, signal
from pathlib import Path
from sky_jupyter.node.kernel import stack_dump as stacks
def deep(n, work):
    return deep(n - 1, work) if n else work()
def main():
    stacks.answer_looks(Path(sys.argv[1]))
    print("ready", flush=True)
    exec(sys.argv[2])
main()
"""


@contextmanager
def process(path: Path, code: str) -> Iterator[int]:
    """A process that answers looks, and then runs code."""
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def looked(pid: int, path: Path) -> dict[str, object]:
    return asyncio.run(stack_sampling.sample_stack(pid, path, window=0.02))


def until(true: Callable[[], object]) -> None:
    """Wait for what comes about by itself."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def seen(
    pid: int, path: Path, ready: Callable[[dict[str, object]], object] = lambda report: report["frames"]
) -> dict[str, object]:
    """What the first look finds that is ready: on a busy machine nobody waits for py-spy, or for a stack."""
    end = time.monotonic() + 60
    while not ready(report := looked(pid, path)):
        assert time.monotonic() < end, report
    return report


def functions(report: dict[str, object]) -> list[str]:
    frames = report["frames"]
    assert isinstance(frames, list)
    return [frame[2] for frame in frames]


@pytest.fixture(params=["py-spy", "no py-spy"])
def spy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With py-spy, where it is there, and as if it were not."""
    there = stack_sampling.spy_path() is not None
    if request.param == "py-spy" and not there:
        pytest.skip("needs py-spy")
    if request.param == "no py-spy":
        monkeypatch.setattr(stack_sampling, "spy_path", lambda: None)
    return request.param == "py-spy"


@pytest.mark.parametrize("code", ["time.sleep(60)", "while True: pass", "sum(range(10**12))"])
def test_a_process_tells_its_stack_again_and_again(tmp_path: Path, spy: bool, code: str) -> None:
    path = tmp_path / "stacks"
    with process(path, code) as pid:
        for _ in range(20):
            assert functions(seen(pid, path))[-3:] == ["<module>", "main", "<module>"]
        # The file does not grow with the looks.
        assert path.stat().st_size < 2000
        assert path.stat().st_mode & 0o777 == 0o600


def test_of_a_deep_stack_the_innermost_frames_are_told(tmp_path: Path, spy: bool) -> None:
    path = tmp_path / "stacks"
    with process(path, "deep(200, lambda: time.sleep(60))") as pid:
        # With py-spy all frames; where it is late, the kernel's own are the innermost.
        found = functions(
            seen(pid, path, lambda report: len(functions(report)) > 99 and (functions(report)[-1] == "<module>") >= spy)
        )
        assert found[:3] == ["<lambda>", "deep", "deep"]
        assert (found[-1] == "<module>") == spy


def test_a_stopped_process_is_said_to_be_and_not_signalled(tmp_path: Path, spy: bool) -> None:
    path = tmp_path / "stacks"
    with process(path, "time.sleep(60)") as pid:
        os.kill(pid, signal.SIGSTOP)
        # A look before that is one at a process that runs.
        until(lambda: (now := stack_sampling.process_state(pid)) is not None and now.state == "T")
        report = seen(pid, path, lambda report: bool(report["frames"]) == spy)
        assert report["note"] == "stopped (SIGSTOP)"
        now = stack_sampling.process_state(pid)
        assert now is not None
        assert not now.pending


def test_a_process_that_would_die_of_the_signal_does_not_get_it(tmp_path: Path, spy: bool) -> None:
    path = tmp_path / "stacks"
    with process(path, "signal.signal(stacks.LOOK, signal.SIG_DFL)\nwhile True: pass") as pid:
        until(lambda: (now := stack_sampling.process_state(pid)) is not None and not now.catches)
        seen(pid, path, lambda report: report["frames"] if spy else "taken away" in str(report["note"]))
        assert stack_sampling.process_state(pid) is not None


def test_a_process_whose_handler_is_the_users_is_told_of(tmp_path: Path, spy: bool) -> None:
    path = tmp_path / "stacks"
    with process(path, "signal.signal(stacks.LOOK, lambda *_: None)\nwhile True: pass") as pid:
        seen(pid, path, lambda report: report["frames"] if spy else "replaced" in str(report["note"]))


def test_a_sleep_in_c_goes_on_where_py_spy_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, slept, late = tmp_path / "stacks", tmp_path / "slept", tmp_path / "py-spy"
    late.write_text("#!/bin/sh\nexec sleep 600\n")
    late.chmod(0o700)
    monkeypatch.setattr(stack_sampling, "spy_path", lambda: str(late))
    code = (
        "import ctypes\nsleep = ctypes.CDLL(None).usleep\nbegan = time.monotonic()\nsleep(2_000_000)\n"
        f"Path({str(slept)!r}).write_text(str(time.monotonic() - began))\ntime.sleep(600)"
    )
    notes = set()
    with process(path, code) as pid:
        while not (slept.exists() and slept.read_text()):
            notes.add(looked(pid, path)["note"])
    assert float(slept.read_text()) >= 2.0
    assert "py-spy did not read its stack in time" in notes


def test_a_py_spy_that_cannot_be_executed_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, foreign = tmp_path / "stacks", tmp_path / "py-spy"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o700)
    monkeypatch.setattr(stack_sampling, "spy_path", lambda: str(foreign))
    with process(path, "deep(3, lambda: time.sleep(600))") as pid:
        assert "deep" in functions(seen(pid, path))
        said = asyncio.run(stack_sampling.spy(pid, native=True))
        assert said == ((), [], "py-spy, which would name it, could not be run")


def test_a_process_that_has_ended_is_said_to_have(tmp_path: Path) -> None:
    with process(tmp_path / "stacks", "pass") as pid:
        pass
    assert looked(pid, tmp_path / "stacks") == {"note": "its kernel has ended", "frames": []}


def test_the_name_of_a_cell_tells_its_number_and_differs_with_its_code() -> None:
    name = stack_dump.cell_file("x = 1\n", 12)
    match = stack_dump.CELL.search(name)
    assert match is not None
    assert match["count"] == "12"
    assert name == stack_dump.cell_file("x = 1\n", 12) != stack_dump.cell_file("x = 2\n", 12)
    assert stack_dump.CELL.search(stack_dump.cell_file("\ud800", 1))


def test_odd_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    with path.open("w") as file:
        for name in ("main.py", 'a "b", line 3 in c\nü\x1b[31m.py'):
            faulthandler.register(stack_dump.LOOK, file=file, all_threads=False)
            exec(compile(f"import signal\nsignal.raise_signal({stack_dump.LOOK})", name, "exec"))
        faulthandler.unregister(stack_dump.LOOK)
    first, second = stack_dump.read_dumps(path.read_text())
    assert first.frames[0] == ("main.py", 2, "<module>")
    assert second.frames[0] == ('a "b", line 3 in c\\x0a\\xfc\\x1b[31m.py', 2, "<module>")
    assert first.whole
    assert second.whole


REFERENCE = 'Stack (most recent call first):\n  File "host.py", line 9 in <module>\n'


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ('Stack (most recent call first):\n  File "a.py", line 1 in f\n  File "host.py", line 9 in <module>\n', True),
        ('Stack (most recent call first):\n  File "a.py", line 1 in f\n', False),
        ('Stack (most recent call first):\n  File "a.py", line 1 in f\n  File "host.py", line 9 in <mod', False),
        ('Current thread 0x00007f [python] (most recent call first):\n  File "a.py", line 1 in f\n  ...\n', True),
        ("Stack (most recent call first):\n", False),
        # Python 3.13 and later, while it collects garbage.
        (
            "Stack (most recent call first):\n  Garbage-collecting\n"
            '  File "a.py", line ??? in f\n  File "host.py", line 9 in <module>\n',
            True,
        ),
    ],
)
def test_a_stack_that_is_still_being_written_is_known(more: str, whole: bool) -> None:
    dumps = stack_dump.read_dumps(REFERENCE + more)
    assert [dump.whole for dump in dumps] == [True, whole]
    data = (REFERENCE + more).encode()
    assert data[: stack_dump.reference_end(data)].decode() == REFERENCE


lines = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["  ...", "Stack (most recent call first):", '  File "x", line 1 in f', "  File", ""]),
    st.builds(
        '  File "{}", line {} in {}'.format, st.text(max_size=20), st.text("0123456789?", max_size=12), st.text()
    ),
)


@given(st.lists(lines, max_size=60).map("\n".join))
@example('Stack (most recent call first):\n  File "\x1b[2J", line 99999999999 in \u202e\n')
@settings(max_examples=300)
def test_any_file_is_read_without_harm(text: str) -> None:
    for dump in stack_dump.read_dumps(text):
        assert len(dump.frames) <= stack_dump.MAX_FRAMES
        for file, line, function in dump.frames:
            assert (file + function).isprintable()
            assert max(len(file), len(function)) <= stack_dump.MAX_TEXT + 1
            assert 0 <= line < 10**9
        stack_dump.users_part(dump.frames)


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_any_bytes_have_a_reference(data: bytes) -> None:
    assert 0 <= stack_dump.reference_end(data) <= len(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["frames", "name", "filename", "module", "line", "os_thread_id", "thread_name"]), inner
        )
    ),
    max_leaves=30,
)


@given(json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=100))
@example(b"[" * 100_000)
@example(json.dumps([{"os_thread_id": 1, "frames": [{"name": None, "filename": 3, "module": []}]}]).encode())
@settings(max_examples=300)
def test_any_report_of_py_spy_is_read_without_harm(data: bytes) -> None:
    frames, native = stack_sampling.read_report(data, 1)
    assert all(isinstance(line, int) and (file + name).isprintable() for file, line, name in frames)
    assert all((library + name).isprintable() for library, name in native)


def test_a_process_that_a_look_halts_is_not_said_to_stand_still(tmp_path: Path) -> None:
    if (spy := stack_sampling.spy_path()) is None:
        pytest.skip("needs py-spy")
    with process(tmp_path / "stacks", "import numpy\nwhile True: pass") as pid:
        states, halted, end = set(), False, time.monotonic() + 60
        while not halted:
            assert time.monotonic() < end, "it was never seen to be halted"
            with subprocess.Popen([spy, "dump", "--native", "--pid", str(pid)], stdout=subprocess.DEVNULL) as looker:
                while looker.poll() is None:
                    states.add(stopped_processes.state_of(pid))
                    halted = halted or psutil.Process(pid).status() in ("stopped", "tracing-stop")
        assert states == {stopped_processes.ON}
        os.kill(pid, signal.SIGSTOP)
        until(lambda: stopped_processes.state_of(pid) == stopped_processes.STILL)
