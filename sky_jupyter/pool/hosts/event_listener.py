"""Event stream of a remote host process, resumed after broken connections."""

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
from .launch import EVENTS

_PAUSE, _LONGEST_PAUSE = TIMEOUTS.links.follow_pause, TIMEOUTS.links.longest_follow_pause
_LOOK = TIMEOUTS.polls.follow


class SpeakingHost(Protocol):
    """Remote host process as seen by its event listener.

    ``left`` is set when its events are ignored; ``heard`` counts the events that were read, where a new stream
    continues.
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
    """Forward a host's events; send ``gone`` once its process has ended."""
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
    """Return whether its process has ended; retry until there is an answer."""
    pause = _PAUSE
    while not host.left.wait(pause):
        try:
            return not host.process.alive
        except (MachineError, TimeoutError):
            # It is unreachable, or busy; the link reconnects.
            pause = min(2 * pause, _LONGEST_PAUSE)
        except SkyError:
            # The connection has been released.
            host.left.set()
    return False


def _again(host: SpeakingHost) -> Iterator[str]:
    """Yield further events from the host's own file, until it ends."""
    began, pid = time.monotonic(), host.command.identity[0]
    argv = ["tail", "-n", f"+{host.heard + 1}", "-s", f"{_LOOK}", f"--pid={pid}", "-f", f"{host.there}/{EVENTS}"]
    with contextlib.suppress(LinkLost, MachineError, TimeoutError):
        yield from host.machine.exec(argv, env={}, cwd="/", log=PurePosixPath("/dev/null"), survive=False).lines()
    if time.monotonic() - began < _LONGEST_PAUSE:
        # A file that cannot be followed is retried now and then.
        host.left.wait(_LONGEST_PAUSE)
