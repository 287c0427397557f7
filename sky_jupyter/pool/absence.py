"""A host that does not answer: whether it is off, as another host of the pool and this machine see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import LinkLost, SkyError
from .reach import place, script_of

if TYPE_CHECKING:
    from .control import Control
    from .remote import RemoteHost

_REACH = 3.0
_PAUSE = 1.0
# So many others are asked in turn, until one can say.
_ASKED = 4
# So many times in a row nobody has to see it before it is given up; without the head there is no pool.
_SURE, _SURE_OF_HEAD = 2, 3
_SEEN = """
import errno, socket
try:
    socket.create_connection(({host!r}, {port}), {reach})
    print("there")
except (socket.timeout, TimeoutError):
    print("away")
except OSError as error:
    print("away" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN) else "there")
"""


async def watch(
    node: int | None,
    hosts: Sequence[RemoteHost],
    control: Control,
    scheduler: str,
    tell: Callable[[str], None],
    give_up: Callable[[str], None],
) -> None:
    """See what is the matter with a node, or where it is None with the head, until it answers or is given up.

    It is given up when neither this machine nor another host finds a machine there any more: a broken link
    of ours alone, or of theirs, loses nothing.

    Parameters
    ----------
    scheduler : str
        The scheduler's address, as the hosts reach it.
    tell, give_up : callable
        Told that it is off, and later that it is given up: why.
    """
    number = node or 0
    host = next((host for host in hosts if number in host.nodes), None)
    # A host that is reached through here only says nothing of others, and none of it.
    others = [other for other in hosts if other is not host and other.apart is None]
    others = others if host is None or host.apart is None else []
    address = scheduler if node is None else control.addresses.get(number, "")
    found = 0
    while host is not None and address and node in control.silent and not control.closing and not host.left.is_set():
        by = "" if await _answers(host) else await _missed_by(others, address)
        found = found + 1 if by else 0
        text = f"{host.machine.name} answers neither {by} nor this machine: it is off, or cut off"
        if found == 1:
            tell(text)
        if found >= (_SURE_OF_HEAD if node is None else _SURE):
            give_up(text)
            return
        await asyncio.sleep(_PAUSE)


async def _answers(host: RemoteHost) -> bool:
    """Whether its machine answers here, as far as can be told."""

    def ask() -> bool:
        try:
            host.machine.shell.run("true", timeout=_REACH)
        except (LinkLost, TimeoutError):
            return False
        except SkyError:
            return True  # it refuses, and so is there; or we have no link to ask through
        return True

    try:
        return await asyncio.wait_for(asyncio.to_thread(ask), _REACH + 1)
    except asyncio.TimeoutError:
        return False


async def _missed_by(others: Sequence[RemoteHost], address: str) -> str:
    """The name of a host that finds nobody there; empty where one finds somebody, or none can say."""
    host, port = place(address)
    code = _SEEN.format(host=host, port=port, reach=_REACH)

    def ask(other: RemoteHost) -> str:
        return (
            other.machine.shell.run(script_of(other.python, code), timeout=3 * _REACH)
            .out.decode("utf-8", "replace")
            .strip()
        )

    for other in others[:_ASKED]:
        try:
            said = await asyncio.wait_for(asyncio.to_thread(ask, other), 3 * _REACH + 1)
        except (SkyError, asyncio.TimeoutError, TimeoutError):
            continue
        if said in ("there", "away"):
            return other.machine.name if said == "away" else ""
    return ""
