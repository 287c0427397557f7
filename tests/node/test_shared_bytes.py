"""Bytes that processes of a machine share: written, sent and read as any others, and never left open."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from sky_jupyter.node.protocol import short_call_frames as frames
from sky_jupyter.node.protocol.shared_bytes import (
    IS_POSSIBLE,
    AnyBytes,
    SharedBytes,
    SharedWriter,
    SpareFiles,
    TooLarge,
    loads,
)

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="this system has no memfd_create: run it on Linux")
LARGE = os.urandom(300_000)


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    process = psutil.Process()
    # What earlier tests have left to the collector.
    gc.collect()
    before = process.num_fds()
    yield
    assert process.num_fds() == before


def pickled(value: Any, most: int = 1 << 20) -> AnyBytes:
    writer = SharedWriter(most)
    pickle.Pickler(writer, 5).dump(value)
    return writer.written()


@pytest.mark.parametrize(
    "value", [None, b"small", LARGE, [LARGE[:20_000], "text", LARGE], bytearray(LARGE)], ids=range(5)
)
def test_a_value_is_as_it_was(value: Any) -> None:
    written = pickled(value)
    assert isinstance(written, SharedBytes) == (len(written) > 100_000)
    assert loads(written) == value
    assert pickle.loads(bytes(written)) == value


def test_too_many_bytes_are_refused_before_they_are_written() -> None:
    with pytest.raises(TooLarge):
        pickled(LARGE, most=len(LARGE))


def test_bytes_stay_in_the_socket_where_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert isinstance(pickled(LARGE), bytes)


def test_a_file_that_is_shorter_than_was_said_is_an_error() -> None:
    written = pickled(LARGE)
    assert isinstance(written, SharedBytes)
    os.ftruncate(written.descriptor, 100_000)
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        loads(written)
    with pytest.raises(ValueError, match="announced"):
        bytes(written)


def test_files_that_were_read_are_written_again_and_no_more_are_kept_than_some() -> None:
    spare = SpareFiles()
    for _ in range(20):
        spare.put(pickled(LARGE))
    assert len(spare.take(100)) == 8
    first = pickled([LARGE, LARGE])
    assert isinstance(first, SharedBytes)
    descriptor = first.descriptor
    spare.put(first)
    spare.put(b"in the socket")
    writer = SharedWriter(1 << 20, spare=spare.take)
    pickle.Pickler(writer, 5).dump([LARGE])
    again = writer.written()
    assert isinstance(again, SharedBytes)
    assert again.descriptor == descriptor
    assert loads(again) == [LARGE]
    assert spare.take() == []


def test_two_processes_that_read_the_same_bytes_do_not_disturb_each_other() -> None:
    written = pickled([LARGE, LARGE[::-1], "text" * 30_000])
    assert isinstance(written, SharedBytes)
    same = SharedBytes(os.dup(written.descriptor), len(written))
    with ThreadPoolExecutor(2) as threads:
        read = list(threads.map(loads, [written, same] * 20))
    assert all(one == [LARGE, LARGE[::-1], "text" * 30_000] for one in read)


def test_frames_bring_shared_bytes_also_when_the_other_end_is_slow() -> None:
    async def send() -> list[Any]:
        here, there = socket.socketpair()
        arrived: list[Any] = []
        all_there = asyncio.Event()

        def take(frame: list[Any]) -> None:
            arrived.append(frame)
            if len(arrived) == 100:
                all_there.set()

        sender = frames.FrameSocket(here, take)
        for number in range(100):
            # The text fills the socket before anybody reads.
            packed = frames.pack_shared(number, pickled((number, LARGE)), "x" * 20_000)
            sender.send(*packed)
        receiver = frames.FrameSocket(there, take)
        await all_there.wait()
        sender.close()
        receiver.close()
        return arrived

    arrived = asyncio.run(asyncio.wait_for(send(), 60))
    assert [loads(shared)[0] == number for number, shared, _ in arrived] == [True] * 100
    del arrived


def test_a_frame_without_its_descriptor_closes_the_connection() -> None:
    async def send() -> tuple[bool, list[Any]]:
        here, there = socket.socketpair()
        arrived: list[Any] = []
        closed = asyncio.Event()
        receiver = frames.FrameSocket(there, arrived.append, closed.set)
        packed, _ = frames.pack_shared(1, pickled(LARGE))
        here.send(packed)
        await closed.wait()
        here.close()
        return receiver.closed, arrived

    assert asyncio.run(asyncio.wait_for(send(), 60)) == (True, [])
    with pytest.raises(ValueError, match="did not come"):
        list(frames.Frames().feed(frames.pack_shared(1, pickled(LARGE))[0]))


def test_descriptors_that_no_frame_names_are_closed() -> None:
    written = pickled(LARGE)
    assert isinstance(written, SharedBytes)
    read = frames.Frames()
    assert list(read.feed(frames.pack(1), [os.dup(written.descriptor)])) == [[1]]
    del read
