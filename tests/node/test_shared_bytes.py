"""Bytes that processes of a machine share: written, sent and read as any others, and never left open."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from sky_jupyter.node.protocol import short_call_frames as frames
from sky_jupyter.node.protocol.shared_bytes import IS_POSSIBLE, AnyBytes, SharedBytes, SharedWriter, TooLarge, loads

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="this system has no memfd_create: run it on Linux")
LARGE = os.urandom(300_000)


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    process = psutil.Process()
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


def test_a_file_that_could_become_shorter_is_not_mapped() -> None:
    written = pickled(LARGE)
    assert isinstance(written, SharedBytes)
    with pytest.raises(OSError):
        os.ftruncate(written.descriptor, 10)
    unsealed = SharedBytes(os.memfd_create("unsealed"), 100)
    shorter = SharedBytes(os.memfd_create("shorter", os.MFD_ALLOW_SEALING), 100)
    fcntl.fcntl(shorter.descriptor, 1033, 2)
    for one in (unsealed, shorter):
        with pytest.raises(ValueError, match="shared bytes"):
            loads(one)
        with pytest.raises(ValueError, match="announced"):
            bytes(one)


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
