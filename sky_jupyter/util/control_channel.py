"""Requests on a kernel's control channel, answered while a cell runs.

A comm's message would wait until the cell has ended. Each type of request has one handler. All replies, including
errors, are sent from here and have one form.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .background_tasks import BackgroundTasks

_INFO, _OURS = "kernel_info_request", "sky_"
_log = logging.getLogger(__name__)
Content = dict[str, Any]
Reply = tuple[Content, Sequence[bytes]]
"""A reply's content, and its buffers."""
Handler = Callable[[Content, dict[str, Any]], "Reply | Awaitable[Reply]"]
"""Called with a request's content and the request, on the control thread."""


def register(kernel: Any, name: str, handler: Handler) -> bool:
    """Register a request handler on a kernel's control channel.

    The request becomes one of the kernel's supported features. Pages look there first: a kernel does not answer unknown
    requests, and the server logs an error.

    Parameters
    ----------
    kernel : ipykernel.kernelbase.Kernel
        This process's kernel; other kernels have no such channel.
    name : str
        The request's type, ``sky_..._request``; the reply's is ``sky_..._reply``.
    handler : callable
        Returns the reply, or a coroutine of it: the channel handles one request at a time, and slow work must not delay
        the next one. An exception of it becomes the reply.

    Returns
    -------
    bool
        True if the kernel has the channel.
    """
    handlers = getattr(kernel, "control_handlers", None)
    if not isinstance(handlers, dict):
        return False
    tasks = BackgroundTasks()

    async def handle(stream: Any, ident: Any, request: dict[str, Any]) -> None:
        content = request.get("content")
        found: Reply | Awaitable[Reply]
        try:
            if isinstance(content, dict):
                found = handler(content, request)
            else:
                found = refusal(f"a request is an object, not {type(content).__name__}")
        except Exception as error:
            found = refusal(error)
        if inspect.isawaitable(found):
            tasks.start(_later(found, lambda reply: send(stream, ident, request, reply)))
        else:
            send(stream, ident, request, found)

    def send(stream: Any, ident: Any, request: dict[str, Any], reply: Reply) -> None:
        content, buffers = reply
        kind = name.removesuffix("request") + "reply"
        try:
            kernel.session.send(stream, kind, content, request, ident=ident, buffers=list(buffers) or None)
        except Exception:
            # Nobody can be told, and the kernel continues.
            _log.exception("an answer could not be sent")

    handlers[name] = handle
    _announce(kernel, handlers)
    return True


def made_when_asked(make: Callable[[], Handler]) -> Handler:
    """Return a handler that is created, with its imports, at the first request."""
    handler = functools.cache(make)

    def handle(content: Content, request: dict[str, Any]) -> Reply | Awaitable[Reply]:
        return handler()(content, request)

    return handle


async def _later(found: Awaitable[Reply], send: Callable[[Reply], None]) -> None:
    try:
        reply = await found
    except Exception as error:
        reply = refusal(error)
    send(reply)


def refusal(why: Exception | str) -> Reply:
    """Return the reply to a request that was refused or has failed."""
    return {"status": "error", "message": why if isinstance(why, str) else f"{type(why).__name__}: {why}"}, ()


def unregister(kernel: Any, name: str) -> None:
    """Undo `register`."""
    handlers = getattr(kernel, "control_handlers", None)
    if isinstance(handlers, dict):
        handlers.pop(name, None)


def _announce(kernel: Any, handlers: dict[str, Any]) -> None:
    """Add our requests to the kernel's supported features."""
    if getattr(handlers.get(_INFO), "announces", False):
        return

    async def tell(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        info = dict(kernel.kernel_info)
        features = [*info.get("supported_features", ()), *(name for name in list(handlers) if name.startswith(_OURS))]
        content = {"status": "ok", **info, "supported_features": features}
        kernel.session.send(stream, "kernel_info_reply", content, parent, ident)

    tell.announces = True  # type: ignore[attr-defined]
    handlers[_INFO] = tell
