"""The thread of a rank's kernel that sends what it prints and shows.

ipykernel's own thread listens for the children that the user's code forks on a TCP port, which every
user of the machine can reach. This one listens in the pool's folder, which only its owner can enter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from zmq.eventloop.zmqstream import ZMQStream

_FAREWELL_MS = 3000


class OutputThread(IOPubThread):
    """Made by the kernel, one a process; ends with it.

    Parameters
    ----------
    socket : zmq.Socket
        What the agent listens to.
    path : str
        The file of the socket on which forked children hand over their output.
    session : jupyter_client.session.Session
        The kernel's.
    """

    def __init__(self, socket: zmq.Socket[Any], path: str, session: Any) -> None:
        self._children = f"ipc://{path}"
        # Whether it hands a message to the agent's socket at this moment, which may have to wait for room.
        self.sending = False
        # How many it has handed over.
        self.sent = 0
        super().__init__(socket, pipe=True, session=session)
        _stay_alive(self.thread)

    def _setup_pipe_in(self) -> None:
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.bind(self._children)
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _handle_pipe_msg(self, msg: list[bytes]) -> None:
        """Pass on what a child printed. ipykernel's asks for a mark, since anybody reaches its port."""
        if self._is_master_process():
            self.send_multipart(msg)

    def _really_send(self, msg: list[Any], *args: Any, **kwargs: Any) -> None:
        if self._check_mp_mode():
            self._send_as_child(msg)
            return
        self.sending = True
        try:
            super()._really_send(msg, *args, **kwargs)
        finally:
            self.sending = False
            self.sent += 1

    def _send_as_child(self, msg: list[Any]) -> None:
        """Hand a message to the parent. A fork inherits no thread of ZeroMQ, so the context is a new one."""
        with zmq.Context() as context, context.socket(zmq.PUSH) as pipe:
            # Where the parent is gone, the child must be able to end.
            pipe.linger = _FAREWELL_MS
            pipe.connect(self._children)
            pipe.send_multipart(msg)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Have the thread do something; what it asks of itself, it does at once.

        ipykernel has it send itself a message for that, one for each text that it flushes. Where many are
        flushed in a row, more of these come than it reads, until there is no room for the next, and it
        waits for itself.
        """
        if threading.current_thread() is self.thread:
            f()
        else:
            super().schedule(f)


def _stay_alive(thread: threading.Thread) -> None:
    """Have a thread taken for alive until it has ended, whatever interrupts who asks.

    Before Python 3.13, `Thread.is_alive` notes a thread as ended for ever where an interrupt comes inside of
    it (bpo-45274). ipykernel asks for each text: from then on all threads would send, and share a socket.
    """

    def is_alive() -> bool:
        # It moves from the first to the second as it begins, and takes itself out as the last that it does.
        return thread in threading._limbo or threading._active.get(thread.ident) is thread  # type: ignore[attr-defined]

    thread.is_alive = is_alive  # type: ignore[method-assign]
