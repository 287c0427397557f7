"""Thread of a rank's kernel that sends its output.

ipykernel's own thread listens on a TCP port for children that user code forks, and every user of the machine can
connect to it. This one listens on a socket in the pool's folder, which only its owner can enter.
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
    """Output thread of a kernel process.

    Parameters
    ----------
    socket : zmq.Socket
        The iopub socket.
    path : str
        Socket file for the output of forked children.
    session : jupyter_client.session.Session
        The kernel's session.
    """

    def __init__(self, socket: zmq.Socket[Any], path: str, session: Any) -> None:
        self._children = f"ipc://{path}"
        # Whether it is writing to the iopub socket, which blocks while the agent's queue is full.
        self.sending = False
        # Number of messages sent, and of functions that other threads have scheduled here, such as those that send.
        self.sent = self.scheduled = 0
        super().__init__(socket, pipe=True, session=session)
        _stay_alive(self.thread)

    def _setup_pipe_in(self) -> None:
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.bind(self._children)
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _handle_pipe_msg(self, msg: list[bytes]) -> None:
        """Forward the output of a forked child.

        ipykernel's checks a token, since anyone can reach its port.
        """
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
        """Send a message to the parent process.

        A fork inherits no ZeroMQ threads, so it needs a new context.
        """
        with zmq.Context() as context, context.socket(zmq.PUSH) as pipe:
            # If the parent is gone, the child must still be able to exit.
            pipe.linger = _FAREWELL_MS
            pipe.connect(self._children)
            pipe.send_multipart(msg)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Run a function in the thread; at once if called from the thread itself.

        ipykernel sends such a thread a message, one per flushed text. After many flushes in a row, the queue is full,
        and the thread waits for itself.
        """
        if threading.current_thread() is self.thread:
            f()
        else:
            self.scheduled += 1
            super().schedule(f)


def _stay_alive(thread: threading.Thread) -> None:
    """Make `is_alive` reliable even if an interrupt hits its caller.

    Before Python 3.13, an interrupt inside `Thread.is_alive` marks the thread as ended for ever (bpo-45274). ipykernel
    calls it for each text: from then on, all threads would send by themselves, and share a socket.
    """

    def is_alive() -> bool:
        # A thread moves from `_limbo` to `_active` on start, and removes itself just before it exits.
        return thread in threading._limbo or threading._active.get(thread.ident) is thread  # type: ignore[attr-defined]

    thread.is_alive = is_alive  # type: ignore[method-assign]
