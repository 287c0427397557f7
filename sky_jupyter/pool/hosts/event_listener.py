"""Event stream of a remote host process, resumed after broken connections."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Protocol

from ...errors import LinkLost, MachineError, SkyError
from ...machines.base import Command, Machine, Process
from ..base.timeouts import TIMEOUTS
from .launch import EVENTS, who_stood_still

_PAUSE, _LONGEST_PAUSE = TIMEOUTS.links.follow_pause, TIMEOUTS.links.longest_follow_pause
_LOOK = TIMEOUTS.polls.follow
_PATIENCE = TIMEOUTS.start.remote_host


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


def skip_past(host: SpeakingHost) -> None:
    """Skip an adopted host's events so far, but for still stopped processes.

    The processes whose ends they report have been replaced long ago: taken for new ones, they would take the kernels
    that run now. Raises MachineError if the host cannot be asked.
    """
    try:
        done = host.machine.run(f"cat -- {shlex.quote(f'{host.there}/{EVENTS}')}", timeout=_PATIENCE)
    except TimeoutError:
        raise MachineError(host.machine.name, "timeout", "the events of its host process could not be read") from None
    # What follows the last newline is an event that is being written.
    past = done.out.decode("utf-8", "replace").split("\n")[:-1]
    host.heard = len(past)
    for line in who_stood_still(past):
        host.tell(json.loads(line))


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
