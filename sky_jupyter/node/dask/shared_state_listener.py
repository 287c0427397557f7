"""Socket of the scheduler for shared-object requests from its own machine.

The socket is in the pool's folder, like the pool's keys. Only its owner can enter that folder, so that whoever can
connect also has the keys.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from ..protocol import shared_state_frames as frames
from ..protocol.short_call_frames import FrameSocket, pack_value
from ..system import peer_user
from .shared_state import PendingRequest, SharedStateExtension

_BACKLOG = 128


def listen(state: SharedStateExtension, folder: Path) -> socket.socket:
    """Listen in a pool's folder; return the socket."""
    return peer_user.listen(frames.socket_of(folder), lambda connected: _Connection(state, connected), _BACKLOG)


class _Connection:
    """Connection of a thread that sends requests; its waiting request ends with it."""

    def __init__(self, state: SharedStateExtension, connected: socket.socket) -> None:
        self._state = state
        self._who = ""
        # The latest request, and whether it waits.
        self._last, self._is_waiting = "", False
        self._line = FrameSocket(connected, self._on_frame, self._on_close)

    def _on_frame(self, frame: list[Any]) -> None:
        try:
            kind, *rest = frame
            if not self._who:
                self._begin(kind, *rest)
            elif kind == frames.REQUEST:
                self._request(*rest)
            elif kind == frames.CANCEL:
                (id,) = rest
                self._state.cancel(id)
            else:
                raise ValueError("there is no such frame")
        except (ValueError, TypeError, LookupError):
            # The frame is invalid.
            self._line.close()

    def _begin(self, kind: int, who: str, epoch: str) -> None:
        if kind != frames.HELLO or epoch != self._state.epoch or not self._state.enter(who, self._line.close):
            raise ValueError("this is not for this scheduler")
        self._who = who

    def _request(self, id: str, what: dict[str, Any], data: list[bytes]) -> None:
        is_sound = type(id) is str and type(what) is dict and all(type(one) is bytes for one in data)
        if self._is_waiting or not is_sound:
            raise ValueError("this is no request, or it has come before the answer to the last one")
        if id != self._last:
            # The requester has read the answer: before that, it sends no further request.
            self._state.forget(self._last)
        asked = self._state.begin(self._who, id, what, data)
        self._last, self._is_waiting = id, not asked.is_over
        if asked.task is None or asked.is_over:
            self._tell(asked)
        else:
            asked.task.add_done_callback(lambda _: self._on_done(asked))

    def _on_done(self, asked: PendingRequest) -> None:
        self._is_waiting = False
        self._tell(asked)

    def _tell(self, asked: PendingRequest) -> None:
        try:
            answer = self._state.answer(asked)
        except Exception as error:
            answer = frames.failed(error)
        try:
            self._line.send(pack_value(answer))
        except (ValueError, OverflowError):
            # Only JSON can represent the answer, so the requester must ask over TLS.
            self._line.close()

    def _on_close(self) -> None:
        self._state.leave(self._who, self._line.close)
        if self._is_waiting:
            self._state.cancel(self._last)
