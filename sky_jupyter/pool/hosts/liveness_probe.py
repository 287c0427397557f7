"""A host that does not answer: whether its machine is off, as this machine and the pool's other hosts see it.

A broken link and a dead machine look the same from here. So others are asked, each over its own
connection: where one of them can be asked, the link is not what broke, and where it finds nobody
there either, nobody is. A host that only we miss goes on, and loses nothing; so does one whose
fellows cannot be asked, as where the whole link is down, or where there are none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import LinkLost, SkyError
from ..base.event_loop import in_thread
from ..base.timeouts import TIMEOUTS
from .reachability import place, script_of

if TYPE_CHECKING:
    from ..control.client import Control
    from .host import Host

# Nobody may have heard of it for so long before it is given up, nor for so long since it is looked for.
_SURE, _LEAST = TIMEOUTS.liveness.sure, TIMEOUTS.liveness.least
# What asking takes beside that, at most.
_ROUND_TRIP = TIMEOUTS.liveness.round_trip
# So many others are asked side by side.
_ASKED = 4
# Others that say the same say it about then.
_GATHER = TIMEOUTS.liveness.gather
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.liveness.pause, TIMEOUTS.liveness.longest_pause
_TRY = TIMEOUTS.liveness.try_again
# Each look is a process on another host: of a pool of many that do not answer, so many are seen to at a time.
BESIDE = 8
# (A listener takes a connection whatever its process does, as long as the machine lives.)
_SEEN = """
import errno, socket, time
end, said = time.monotonic() + {span}, "away"
while said != "there" and end - time.monotonic() > 0.05:
    try:
        socket.create_connection(({host!r}, {port}), min(1.0, end - time.monotonic())).close()
        said = "there"
    except (socket.timeout, TimeoutError):
        said = "away"
    except OSError as error:
        gone = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
        said = "closed" if error.errno == errno.ECONNREFUSED else "away" if error.errno in gone else "unsure"
        time.sleep({pause})
print(said)
"""
_TELLS = {
    "away": "{name} answers neither {by} nor this machine: it is off, or cut off",
    "closed": "{name} answers this machine no more; as seen from {by} it is there, and nothing of the pool on it: its "
    "processes have ended",
}


async def watch(
    node: int,
    hosts: Sequence[Host],
    control: Control,
    scheduler: str,
    limit: asyncio.Semaphore,
    give_up: Callable[[str], None],
) -> None:
    """See what is the matter with a node that is in doubt, until it answers or is given up.

    Parameters
    ----------
    node : int
        Of 0 it is seen whether the head is there, without which there is no pool.
    scheduler : str
        The scheduler's address, as the hosts reach it.
    limit : Semaphore
        Held while others are asked.
    give_up : callable
        Told why nothing of it is there any more.
    """
    host = next((host for host in hosts if node in host.nodes), None)
    if host is None or host.apart is not None:
        # Through here only it is reached: nobody else could tell.
        return
    # Those that are known to reach it: the start has seen that the head and each other host reach each other.
    others = [other for other in hosts if other is not host and other.apart is None and 0 in (node, *other.nodes)]
    about: set[int | None] = {None, 0} if node == 0 else {node}
    pause = _PAUSE
    while others and about & control.doubted and not control.closing and not host.left.is_set():
        address = scheduler if node == 0 else control.addresses.get(node, "")
        if not address:
            # The scheduler has lost it, and it is to come back in time.
            return
        async with limit:
            span = max(_LEAST, _SURE - max(map(control.unheard, about)))
            answers, (by, seen) = await asyncio.gather(_answers(host, span), _seen(others, address, span))
        still = about & control.doubted and not control.closing and not host.left.is_set()
        if still and not answers and seen in _TELLS:
            give_up(_TELLS[seen].format(name=host.name, by=by))
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _answers(host: Host, span: float) -> bool:
    """Whether its machine answers here in this time, as far as can be told."""
    end = time.monotonic() + span

    def ask() -> bool:
        while (left := end - time.monotonic()) > 0:
            try:
                host.machine.run("true", timeout=left)
            except LinkLost:
                time.sleep(min(left, _TRY))
            except TimeoutError:
                return False
            except SkyError:
                return True  # it refuses, and so is there; or we have no link to ask through
            else:
                return True
        return False

    try:
        return await asyncio.wait_for(in_thread(ask), span)
    except asyncio.TimeoutError:
        return False


async def _seen(others: Sequence[Host], address: str, span: float) -> tuple[str, str]:
    """Who could be asked, and what they all find at an address: ``away``, ``closed``, or something else."""
    host, port = place(address)
    code = _SEEN.format(host=host, port=port, span=span, pause=_TRY)

    def ask(other: Host) -> str:
        done = other.machine.run(script_of(other.python, code), timeout=span + _ROUND_TRIP)
        return done.out.decode("utf-8", "replace").strip()

    asked = {asyncio.ensure_future(in_thread(ask, other)): other.name for other in others[:_ASKED]}
    said: dict[str, str] = {}
    late, end = set(asked), time.monotonic() + span + _ROUND_TRIP
    while late and (left := end - time.monotonic()) > 0 and "there" not in said.values():
        done, late = await asyncio.wait(late, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        said.update({asked[task]: task.result() for task in done if task.exception() is None})
        if said:
            # They look for equally long: who has not answered by then cannot be asked.
            end = min(end, time.monotonic() + _GATHER)
    for task in late:
        task.cancel()
    if not said or not set(said.values()) <= set(_TELLS):
        return "", ""
    seen = "closed" if "closed" in said.values() else "away"
    names = [name for name in asked.values() if said.get(name) == seen]
    return (" nor " if seen == "away" else " and ").join(names), seen
