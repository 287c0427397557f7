"""Reader of a kernel's iopub socket, for output that comes in single messages."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from jupyter_client.session import DELIM, Session

# Most messages that are read before other tasks of the loop run; a large message ends the turn.
_TURN = 32
_LARGE = 1 << 16
# Two of the three messages of a short cell are of these types, and not needed here.
_NOT_NEEDED = (b".status", b".execute_input")


class IOPubReader:
    """Reader of one kernel's messages, in turns with the loop's other tasks.

    A socket of `zmq.asyncio` makes a future for each message, and `Session.deserialize` parses the dates of its two
    headers: together they took twice the time of the agent's other work for a printed line.

    Parameters
    ----------
    socket : zmq.Socket
        A plain socket, connected. The caller closes it after `close`.
    session : jupyter_client.session.Session
        The kernel's session, whose key signs the messages.
    on_message : callable
        Called with each message as a dictionary.
    on_refused : callable
        Called with the error of each message that cannot be read, or that ``on_message`` fails on.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        session: Session,
        on_message: Callable[[dict[str, Any]], None],
        on_refused: Callable[[Exception], None],
    ) -> None:
        self._socket = socket
        self._session = session
        self._on_message = on_message
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = socket.getsockopt(zmq.FD)
        self._next: asyncio.Handle | None = None
        self._is_open = True
        self._loop.add_reader(self._descriptor, self._read)
        # The descriptor reports only changes: messages that have arrived already would be read with the next one.
        self._go_on()

    def close(self) -> None:
        """Stop reading."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._descriptor)
            if self._next is not None:
                self._next.cancel()

    def _go_on(self) -> None:
        if self._next is None:
            self._next = self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read messages until none is left, or until other tasks have their turn."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        for _ in range(_TURN):
            if not self._is_open:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frames[0].endswith(_NOT_NEEDED):
                self._take(frames)
            if len(frames[-1]) > _LARGE:
                break
        self._go_on()

    def _take(self, frames: list[bytes]) -> None:
        try:
            self._on_message(deserialize(self._session, frames))
        except Exception as error:  # user code can send anything, and the messages after it must be read
            self._on_refused(error)


def deserialize(session: Session, frames: Sequence[bytes]) -> dict[str, Any]:
    """Return a signed Jupyter message as `Session.deserialize` does.

    Dates stay texts, and messages of older protocols are not converted: the kernels are ours.

    Parameters
    ----------
    session : jupyter_client.session.Session
        The kernel's session.
    frames : sequence of bytes
        All frames of the message, as received.

    Returns
    -------
    dict
        The message.

    Raises
    ------
    ValueError
        The message is malformed, or its signature is wrong.
    """
    signature, *parts = frames[frames.index(DELIM) + 1 :]
    if len(parts) < 4:
        raise ValueError(f"malformed message: it has {len(parts)} parts after its signature, and needs 4")
    if not hmac.compare_digest(signature, session.sign(parts[:4])):
        raise ValueError("its signature is wrong")
    header, parent, metadata, content = map(session.unpack, parts[:4])
    return {
        "header": header,
        "msg_id": header["msg_id"],
        "msg_type": header["msg_type"],
        "parent_header": parent,
        "metadata": metadata,
        "content": content,
        "buffers": [memoryview(part) for part in parts[4:]],
    }
