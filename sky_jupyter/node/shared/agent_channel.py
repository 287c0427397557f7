"""Channel from code on a rank to its agent: requests that wait for answers.

A request goes out with the kernel's output; the answer comes on the control channel, which the kernel reads in a
thread. So requests also work while the main thread is busy. An interrupt ends the wait, and the agent is notified. This
process never has a key or address of the control plane. On the scheduler's machine it has a socket for requests to
shared objects; see `direct_requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import NotInPoolError, PoolError, SpecError
from ..runtime.instance_info import POOL_VARIABLE, instance_info, variable
from . import outside_ranks
from .direct_requests import DirectRequests, tell_where, undisturbed

ASK, ANSWER = "sky_ask", "sky_answer"
# Size limit of one shared value in bytes: it is kept in the memory of the head's scheduler.
MOST_VALUE = 16 << 20
Answer = tuple[Any, list[bytes]]
ANEW = (
    "the pool's scheduler, which runs on the head, was restarted: what the pool shared by name (dicts, sets, "
    "counters, queues, and who held which lock) is gone. From here on all of these begin empty"
)
# Exceptions for refused requests.
_KINDS: dict[str, type[Exception]] = {
    "ValueError": SpecError,
    "TypeError": TypeError,
    "RuntimeError": RuntimeError,
    "MemoryError": PoolError,
}


@dataclass
class _Wait:
    """Waiter of one request: its lock is released when the answer is there.

    A lock and no Event: an interrupt inside an Event may leave it locked.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    content: dict[str, Any] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)

    def answer(self, content: dict[str, Any], data: list[bytes]) -> None:
        """Store the answer and wake the waiter; runs in the control thread."""
        if self.lock.locked():
            self.content, self.data = content, data
            with contextlib.suppress(RuntimeError):
                self.lock.release()


class _Awaited:
    """Waiter of one request of a coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self._loop.create_future()

    def answer(self, content: dict[str, Any], data: list[bytes]) -> None:
        """Resolve the future; runs in the control thread."""

        def settle() -> None:
            if not self.future.done():
                self.future.set_result((content, data))

        # The loop may be closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)


class AgentChannel:
    """Channel of a rank to its agent; one per kernel, see `of_rank`."""

    def __init__(self, kernel: Any) -> None:
        self.pid = os.getpid()
        self._kernel = kernel
        self._waits: dict[str, _Wait | _Awaited] = {}
        # Handlers of the agent's own messages, by topic.
        self.hears: dict[str, Callable[[dict[str, Any], list[bytes]], None]] = {}
        kernel.control_handlers[ANSWER] = self._on_answer

    def tell(self, content: dict[str, Any], data: Sequence[bytes] = ()) -> None:
        """Send the agent a message, after all earlier output."""
        kernel = self._kernel

        def send() -> None:
            kernel.session.send(kernel.iopub_socket, ASK, content, ident=kernel._topic(ASK), buffers=list(data) or None)

        kernel.iopub_socket.io_thread.schedule(send)

    def ask(self, to: str, what: dict[str, Any], data: Sequence[bytes] = (), where: str = "", id: str = "") -> Answer:
        """Send a request and wait for its answer.

        Parameters
        ----------
        to : str
            Recipient in the agent.
        what : dict
            The request, as JSON.
        data : sequence of bytes
            Binary data.
        where : str
            What the request waits for, for the message of an interrupt, which cancels the request. If empty, the
            request takes no time and is not cancelled.
        id : str
            Its id; a random one by default.

        Returns
        -------
        tuple
            The answer and its binary data.
        """
        id, wait = id or uuid.uuid4().hex, _Wait()
        wait.lock.acquire()
        self._waits[id] = wait
        try:
            self.tell({"to": to, "id": id, "what": what}, data)
            wait.lock.acquire()
            return wait.content, wait.data
        except BaseException as error:
            if where:
                with undisturbed():
                    # Even if the answer has just arrived: then the agent undoes the request.
                    self.tell({"to": to, "id": id, "drop": True})
                    tell_where(error, where)
            raise
        finally:
            self._waits.pop(id, None)

    async def ask_async(
        self, to: str, what: dict[str, Any], data: Sequence[bytes] = (), where: str = "", id: str = ""
    ) -> Answer:
        """Send a request and await its answer; a cancelled await cancels the request.

        See `ask`.
        """
        id, wait = id or uuid.uuid4().hex, _Awaited()
        self._waits[id] = wait
        try:
            self.tell({"to": to, "id": id, "what": what}, data)
            return await wait.future
        except BaseException:
            if where:
                self.tell({"to": to, "id": id, "drop": True})
            raise
        finally:
            self._waits.pop(id, None)

    async def _on_answer(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Pass an answer to its waiter; runs in the control thread."""
        content, data = parent["content"], [bytes(one) for one in parent.get("buffers") or ()]
        wait = self._waits.get(content.get("id"))
        if wait is not None:
            wait.answer(content, data)
        elif content.get("for") in self.hears:
            self.hears[content["for"]](content, data)


_asking: AgentChannel | None = None
_making = threading.Lock()


def of_rank() -> AgentChannel | None:
    """Return this rank's channel; None if this process is no rank.

    Raises NotInPoolError in a process that a rank has started or forked.
    """
    global _asking  # noqa: PLW0603 - there is one kernel a process
    if not variable(POOL_VARIABLE):
        return None
    with _making:
        if _asking is None:
            from ipykernel.kernelapp import IPKernelApp

            # A subprocess has the variable, but no kernel.
            kernel = IPKernelApp.instance().kernel if IPKernelApp.initialized() else None
            if kernel is None:
                raise NotInPoolError(
                    "this process was started by a rank and is not a rank: only the rank's own process can ask its pool"
                )
            _asking = AgentChannel(kernel)
    if _asking.pid != os.getpid():
        raise NotInPoolError(
            "this process was forked by a rank and is not a rank: only the rank's own process can ask its pool"
        )
    return _asking


@dataclass
class SharedStateChannel:
    """Channel for requests on shared objects, from this process.

    Parameters
    ----------
    send, send_async : callable
        ``send(id, what, data, epoch, where)`` sends a request to the scheduler and returns its answer; ``send_async``
        is awaited.
    world_size : callable
        Returns the pool's number of ranks.
    direct : callable
        Returns the connections to a scheduler on this machine, which are tried first; None without them.
    epoch : str, optional
        Epoch of the scheduler that answered last.
    """

    send: Callable[[str, dict[str, Any], Sequence[bytes], str | None, str], Answer]
    send_async: Callable[[str, dict[str, Any], Sequence[bytes], str | None, str], Awaitable[Answer]]
    world_size: Callable[[], int]
    direct: Callable[[], DirectRequests | None]
    epoch: str | None = None

    def ask(self, what: dict[str, Any], data: Sequence[bytes] = (), where: str = "") -> Answer:
        """Send a request; return its value and the binary data with it.

        Raises PoolError, once, when the scheduler has been restarted since the last request.
        """
        id, epoch = uuid.uuid4().hex, self.epoch
        direct = self.direct()
        answer = None if direct is None else direct.ask(id, what, data, epoch, where)
        return self._read(*(answer or self.send(id, what, data, epoch, where)))

    async def ask_async(self, what: dict[str, Any], data: Sequence[bytes] = (), where: str = "") -> Answer:
        """Send a request and await its answer; see `ask`."""
        id, epoch = uuid.uuid4().hex, self.epoch
        direct = self.direct()
        answer = None if direct is None else await direct.ask_async(id, what, data, epoch, where)
        return self._read(*(answer or await self.send_async(id, what, data, epoch, where)))

    def _read(self, content: dict[str, Any], found: list[bytes]) -> Answer:
        status = content.get("status")
        if status == "anew":
            self.epoch = None
            raise PoolError(ANEW)
        self.epoch = content.get("epoch", self.epoch)
        if status != "ok":
            raise _KINDS.get(str(content.get("kind")), PoolError)(content.get("text"))
        return content.get("value"), found


_shares: SharedStateChannel | None = None


def shares() -> SharedStateChannel:
    """Return the channel of this rank's pool, or of the notebook's current pool.

    Raises NotInPoolError when there is none.
    """
    global _shares  # noqa: PLW0603 - there is one kernel a process
    rank = of_rank()
    if rank is None:
        if not outside_ranks.offered:
            raise NotInPoolError(
                "there is no pool here: call it in a %%sky cell, in a function on a pool, or while a pool is running"
            )
        channel: SharedStateChannel = outside_ranks.offered[0]()
        return channel
    if _shares is None:
        _shares = _shares_of(rank)
    return _shares


def _shares_of(rank: AgentChannel) -> SharedStateChannel:
    direct: DirectRequests | None = None

    def read(answer: Answer) -> Answer:
        """Note from an answer how to reach the scheduler directly, if the answer says so."""
        nonlocal direct
        if "direct" in answer[0] and direct is None:
            direct = DirectRequests(*answer[0]["direct"])
        return answer

    def send(id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str) -> Answer:
        return read(rank.ask("share", {**what, "epoch": epoch}, data, where, id))

    async def send_async(id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str) -> Answer:
        return read(await rank.ask_async("share", {**what, "epoch": epoch}, data, where, id))

    return SharedStateChannel(send, send_async, lambda: instance_info().world_size, lambda: direct)
