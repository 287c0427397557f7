"""The agent's reader of a kernel's iopub socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from sky_jupyter.node.agent.iopub_reader import IOPubReader, deserialize

MANY = 500


def session(key: bytes = b"secret") -> Session:
    return Session(key=key, signature_scheme="hmac-sha256", username="sky", digest_history_size=0)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """A kernel's end and an agent's end."""
    context = zmq.Context()
    kernel, agent = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    for socket in (kernel, agent):
        socket.linger = 0
        socket.set_hwm(0)
    kernel.bind(f"ipc://{tmp_path}/iopub")
    agent.connect(f"ipc://{tmp_path}/iopub")
    agent.subscribe(b"")
    kernel.recv()  # the subscription
    yield kernel, agent
    kernel.close()
    agent.close()
    context.term()


def read(kernel: Any, agent: Any, send: Any, until: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Send, read until a message's content is ``until``; return messages and refusals."""
    messages: list[dict[str, Any]] = []
    refused: list[str] = []

    async def go() -> None:
        over = asyncio.Event()

        def take(message: dict[str, Any]) -> None:
            messages.append(message)
            if message["content"] == until:
                over.set()

        send()
        reader = IOPubReader(agent, session(), take, lambda error: refused.append(str(error)))
        await over.wait()
        reader.close()

    asyncio.run(go())
    return messages, refused


def test_all_messages_come_in_order_beside_those_that_came_before_the_reader(sockets: Any) -> None:
    kernel, agent = sockets
    ours = session()

    def send() -> None:
        for number in range(MANY):
            ours.send(kernel, "stream", {"text": str(number)}, parent={"msg_id": "run"}, ident=b"stream.stdout")
            ours.send(kernel, "status", {"execution_state": "busy"}, ident=b"kernel.x.status")
        ours.send(kernel, "stream", {"text": "end"})

    messages, refused = read(kernel, agent, send, {"text": "end"})
    assert [message["content"]["text"] for message in messages] == [*map(str, range(MANY)), "end"]
    assert messages[0]["parent_header"] == {"msg_id": "run"}
    assert not refused


def test_other_tasks_run_while_messages_keep_coming(sockets: Any) -> None:
    kernel, agent = sockets
    ours = session()
    turns: list[int] = []
    messages: list[dict[str, Any]] = []

    async def go() -> None:
        over = asyncio.Event()

        def take(message: dict[str, Any]) -> None:
            messages.append(message)
            if len(messages) == MANY:
                over.set()

        async def other() -> None:
            while not over.is_set():
                turns.append(len(messages))
                await asyncio.sleep(0)

        for number in range(MANY):
            ours.send(kernel, "stream", {"text": str(number)})
        task = asyncio.create_task(other())
        reader = IOPubReader(agent, session(), take, lambda error: None)
        await task
        reader.close()

    asyncio.run(go())
    assert len(set(turns)) > 5


def test_what_cannot_be_read_is_refused_and_the_next_message_is_read(sockets: Any) -> None:
    kernel, agent = sockets

    def send() -> None:
        session(b"another").send(kernel, "stream", {"text": "forged"})
        kernel.send_multipart([b"stream", b"no message"])
        kernel.send_multipart([b"<IDS|MSG>", b"", b"{}"])
        session().send(kernel, "stream", {"text": "end"})

    messages, refused = read(kernel, agent, send, {"text": "end"})
    assert len(messages) == 1
    assert len(refused) == 3
    assert "signature" in refused[0]
    assert "malformed" in refused[2]


def test_the_next_message_is_read_after_one_that_its_taker_fails_on(sockets: Any) -> None:
    kernel, agent = sockets
    refused: list[Exception] = []

    async def go() -> None:
        over = asyncio.Event()

        def take(message: dict[str, Any]) -> None:
            if message["content"]["text"] == "wrong":
                raise KeyError("name")
            over.set()

        # Both are there before the reader is: nothing that comes later wakes it.
        for text in ("wrong", "end"):
            session().send(kernel, "stream", {"text": text})
        agent.poll()
        reader = IOPubReader(agent, session(), take, refused.append)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), 20)
        reader.close()
        assert over.is_set()

    asyncio.run(go())
    assert [type(error) for error in refused] == [KeyError]


def test_a_message_is_the_same_as_jupyters_except_for_dates() -> None:
    ours = session()
    frames = ours.serialize(ours.msg("display_data", {"data": {"text/plain": "1"}}, metadata={"a": 1}), ident=b"x")
    frames.append(b"buffer")
    theirs = ours.deserialize(ours.feed_identities(frames)[1])
    mine = deserialize(ours, frames)
    theirs["header"]["date"] = mine["header"]["date"]
    assert mine == theirs
    assert [bytes(one) for one in mine["buffers"]] == [b"buffer"]
