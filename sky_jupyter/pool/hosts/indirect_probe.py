"""Indirect probe of a silent host: is its machine off, or only the link to it.

From here, both look the same. So other hosts are asked, each over its own connection: if one can be asked, the link is
not broken; if it finds nothing at the host's address either, the machine is off. A host that only this machine cannot
reach is not declared lost, nor is one for which no other host can be asked, unless the provider says that its machine
has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import LinkLost, MachineError, SkyError
from ..base.event_loop import in_thread
from ..base.timeouts import TIMEOUTS
from .reachability import place, script_of

if TYPE_CHECKING:
    from ..control.control_client import Control
    from .launch import Host

# A machine is declared lost when it has not answered for _SURE, and the inquiry has lasted _LEAST.
_SURE, _LEAST = TIMEOUTS.liveness.sure, TIMEOUTS.liveness.least
# What the inquiry's round trip may add.
_ROUND_TRIP = TIMEOUTS.liveness.round_trip
# How many other hosts are asked in parallel.
_ASKED = 4
# How far apart the answers of other hosts may come.
_GATHER = TIMEOUTS.liveness.gather
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.liveness.pause, TIMEOUTS.liveness.longest_pause
_TRY = TIMEOUTS.liveness.try_again
# An inquiry is a process on each of the others: the limit of inquiries at a time.
BESIDE = 8
# (A listening socket accepts connections whatever its process does, as long as the machine is up.)
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
    ended: Callable[[], str] | None = None,
) -> None:
    """Check a node in doubt until it answers or is declared lost.

    Parameters
    ----------
    node : int
        The node; 0 stands for the head, without which there is no pool.
    hosts : sequence of Host
        The pool's remote hosts.
    control : Control
        Client of the agents.
    scheduler : str
        The scheduler's address as the hosts see it.
    limit : Semaphore
        Held during an inquiry.
    give_up : callable
        Called with the reason when the node is lost.
    ended : callable or None
        Asks the provider whether the machine has ended; returns how, or "". None if no provider made the machine.
    """
    host = next((host for host in hosts if node in host.nodes), None)
    if host is None or host.apart is not None:
        # Only this machine reaches it: no other host can tell.
        return
    # Hosts that are known to reach it: at the start, the head and each other host reached each other.
    others = [other for other in hosts if other is not host and other.apart is None and 0 in (node, *other.nodes)]
    about: set[int | None] = {None, 0} if node == 0 else {node}
    pause = _PAUSE
    while (others or ended) and about & control.doubted and not control.closing and not host.left.is_set():
        address = scheduler if node == 0 else control.addresses.get(node, "")
        if not address and not ended:
            # The scheduler has lost it: its absence is timed elsewhere.
            return
        async with limit:
            span = max(_LEAST, _SURE - max(map(control.detector.unheard, about)))
            asked = others if address else []
            answers, (by, seen) = await asyncio.gather(_answers(host, span), _seen(asked, address, span))
        still = about & control.doubted and not control.closing and not host.left.is_set()
        if still and not answers and seen in _TELLS:
            give_up(_TELLS[seen].format(name=host.name, by=by))
            return
        if still and not answers and ended is not None and (why := await in_thread(ended)):
            give_up(f"{host.name} does not answer: {why}")
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _answers(host: Host, span: float) -> bool:
    """Return whether its machine answers this one within ``span`` seconds."""
    end = time.monotonic() + span

    def ask() -> bool:
        while (left := end - time.monotonic()) > 0:
            try:
                host.machine.run("true", timeout=left)
            except LinkLost:
                time.sleep(min(left, _TRY))
            except TimeoutError:
                return False
            except MachineError as error:
                # Another incarnation of it may be there.
                return error.reason != "gone"
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
    """Return the hosts that saw the node as away or closed, and which; else nothing."""
    if not others:
        return "", ""
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
            # All hosts probe for the same time: one that has not answered by then cannot be asked.
            end = min(end, time.monotonic() + _GATHER)
    for task in late:
        task.cancel()
    if not said or not set(said.values()) <= set(_TELLS):
        return "", ""
    seen = "closed" if "closed" in said.values() else "away"
    names = [name for name in asked.values() if said.get(name) == seen]
    return (" nor " if seen == "away" else " and ").join(names), seen
