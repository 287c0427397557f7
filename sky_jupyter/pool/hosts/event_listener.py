"""Listening to a host process on another machine, through all breaks of the connection, until it has ended."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Protocol

from ...errors import LinkLost, MachineError, SkyError
from ...machines.base import Command, Machine, Process
from ..base.timeouts import TIMEOUTS
from .host import EVENTS

_PAUSE, _LONGEST_PAUSE = TIMEOUTS.links.follow_pause, TIMEOUTS.links.longest_follow_pause
_LOOK = TIMEOUTS.polls.follow


class SpeakingHost(Protocol):
    """A host process on another machine, as its listener uses it.

    Attributes
    ----------
    machine, command, process : Machine, Command, Process
        Where it runs, and what is known of it there.
    there, place : str
        Its folder on its machine, and the machine as messages name it.
    left : threading.Event
        Set when nobody listens any more.
    heard : int
        How many events it has sent; who reconnects goes on after them.
    """

    machine: Machine
    left: threading.Event
    heard: int

    @property
    def command(self) -> Command: ...

    @property
    def process(self) -> Process: ...

    @property
    def there(self) -> str: ...

    @property
    def place(self) -> str: ...

    @property
    def tell(self) -> Callable[[dict[str, Any]], object]: ...


def listen(host: SpeakingHost) -> None:
    """Hand on what a host says; that it is gone is said when its process is known to have ended, and not before."""
    lines = host.command.lines()
    while not host.left.is_set():
        _hand_on(host, lines)
        if host.left.is_set() or _has_ended(host):
            break
        lines = _again(host)
    if not host.left.is_set():
        host.tell({"event": "gone", "message": f"the host ended{host.place}"})


def _hand_on(host: SpeakingHost, lines: Iterator[str]) -> None:
    with contextlib.suppress(SkyError, ValueError):
        for line in lines:
            if host.left.is_set():
                return
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    host.heard += 1
                    host.tell(event)


def _has_ended(host: SpeakingHost) -> bool:
    """Whether its process has ended: asked for as long as there is no answer."""
    pause = _PAUSE
    while not host.left.wait(pause):
        try:
            return not host.process.alive
        except (MachineError, TimeoutError):
            # It is away, or cannot just now say; the link sees to its return.
            pause = min(2 * pause, _LONGEST_PAUSE)
        except SkyError:
            # Nobody holds the machine for us any more.
            host.left.set()
    return False


def _again(host: SpeakingHost) -> Iterator[str]:
    """What the host has said since, and will say, from its own file; ends with its process or the connection."""
    began, pid = time.monotonic(), host.command.identity[0]
    argv = ["tail", "-n", f"+{host.heard + 1}", "-s", f"{_LOOK}", f"--pid={pid}", "-f", f"{host.there}/{EVENTS}"]
    with contextlib.suppress(LinkLost, MachineError, TimeoutError):
        yield from host.machine.exec(argv, env={}, cwd="/", log=PurePosixPath("/dev/null"), survive=False).lines()
    if time.monotonic() - began < _LONGEST_PAUSE:
        # One that cannot be followed is looked at now and then.
        host.left.wait(_LONGEST_PAUSE)
