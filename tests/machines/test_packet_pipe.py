"""What a channel has received is read as paramiko's own pipe gives it, in whatever parts it came and is asked for."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")

from paramiko.buffered_pipe import BufferedPipe, PipeTimeout

from sky_jupyter.machines.ssh.channels import PacketPipe

PARTS = st.binary(max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), PARTS),
        st.tuples(st.just("read"), st.integers(1, 60)),
        st.tuples(st.just("empty"), st.none()),
        st.tuples(st.just("close"), st.none()),
    ),
    max_size=30,
)


def answers(pipe: Any, steps: Sequence[tuple[str, Any]]) -> list[object]:
    """Return what each step gives, and what is there after it."""
    found: list[object] = []
    for name, argument in steps:
        try:
            if name == "read":
                answer = pipe.read(argument, 0.0)
            else:
                answer = getattr(pipe, name)(*([] if argument is None else [argument]))
        except PipeTimeout:
            answer = "nothing there"
        found.append((name, answer, len(pipe), pipe.read_ready()))
    return found


@given(STEPS)
def test_each_step_gives_what_paramikos_own_pipe_gives(steps: list[tuple[str, Any]]) -> None:
    assert answers(PacketPipe(), steps) == answers(BufferedPipe(), steps)


def test_packets_of_few_bytes_take_little_memory() -> None:
    pipe = PacketPipe()
    parts = [bytes([number % 251]) for number in range(20_000)]
    tracemalloc.start()
    try:
        for number, part in enumerate(parts):
            pipe.feed(part)
            if number % 100 == 99:
                assert pipe.read(10) == b"".join(parts[number // 100 * 10 :][:10])
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Of packets that are kept apart they would be 4 MB.
    assert used < 1_000_000
    assert pipe.read(100_000) == b"".join(parts[2000:])


@pytest.mark.parametrize("how", ["data", "the end"])
def test_a_reader_waits_for(how: str) -> None:
    pipe, got = PacketPipe(), list[bytes]()
    reader = threading.Thread(target=lambda: got.append(pipe.read(100)))
    reader.start()
    if how == "data":
        pipe.feed(b"some")
    else:
        pipe.close()
    reader.join()
    assert got == [b"some" if how == "data" else b""]


def test_a_reader_of_an_event_learns_of_data_and_of_the_end() -> None:
    pipe, event = PacketPipe(), threading.Event()
    pipe.set_event(event)
    assert not event.is_set()
    pipe.feed(b"some")
    assert event.is_set()
    pipe.read(3)
    assert event.is_set()
    pipe.read(3)
    assert not event.is_set()
    pipe.close()
    assert event.is_set()
