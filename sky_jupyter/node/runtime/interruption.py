"""Interruption notices of the pool's machines, as user code on ranks sees them.

A provider's function, which the agent calls on the machine, returns an `Interruption`. The agents tell each other, and
each tells its ranks. Code polls `interruption`, or registers a function by `on_interruption`.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .instance_info import POOL_VARIABLE, instance_info, variable

# The action that only warns: the machine may be taken away, and nobody knows when.
RISK = "rebalance"
# The topic of the agent's messages to a rank.
TOPIC = "interruption"
Hook = TypeVar("Hook", bound=Callable[[], object])


@dataclass(frozen=True)
class Interruption:
    """Notice of a provider that a machine will be taken away.

    Parameters
    ----------
    action : str
        What happens to it, in the provider's word, such as ``"terminate"`` or ``"stop"``. ``"rebalance"`` is a warning
        only: the machine may be taken away soon.
    at : float or None
        When, in seconds since 1970; None if that is unknown.
    """

    action: str
    at: float | None = None

    @property
    def is_risk(self) -> bool:
        """Whether it is a warning only."""
        return self.action == RISK


class PoolInterruption:
    """State of the pool's interruption notices; returned by `interruption`.

    On all ranks, it is true while a machine of the pool is about to be taken away, and false again when the pool has
    replaced the machine. Each process has one such object, which changes by itself.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[int, Interruption] = {}
        self._event = threading.Event()
        self._hooks: dict[object, Callable[[], object]] = {}
        self._called: set[object] = set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notice.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; without limit by default.

        Returns
        -------
        bool
            Whether there is a notice.
        """
        return self._event.wait(timeout)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes whose machines will be taken away."""
        with self._lock:
            return tuple(sorted(self._nodes))

    @property
    def here(self) -> bool:
        """Whether this rank's own machine will be taken away."""
        return bool(variable(POOL_VARIABLE)) and instance_info().node in self.nodes

    @property
    def at(self) -> float | None:
        """The Unix time when the first of these machines goes; None if none or unknown."""
        with self._lock:
            return min((one.at for one in self._nodes.values() if one.at is not None), default=None)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the first machine goes, not below 0; None as for `at`."""
        return None if self.at is None else max(0.0, self.at - time.time())

    def __repr__(self) -> str:
        nodes, left = self.nodes, self.seconds_left
        if not nodes:
            return "<no interruption>"
        when = "" if left is None else f" in {left:.0f} s"
        return f"<interruption of node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}{when}>"

    def change(self, nodes: Mapping[int, Interruption]) -> None:
        """Replace the known notices, and call the hooks if one is new; any thread."""
        with self._lock:
            if set(self._nodes) - set(nodes):
                # A machine was replaced: the next notice is another one.
                self._called.clear()
            self._nodes = dict(nodes)
            (self._event.set if self._nodes else self._event.clear)()
            self._call_hooks()

    def add(self, hook: Callable[[], object]) -> None:
        """Call a function at the next notice, or now if there is one."""
        with self._lock:
            key = _name_of(hook)
            self._hooks[key] = hook
            self._called.discard(key)
            self._call_hooks()

    def _call_hooks(self) -> None:
        due = [key for key in self._hooks if key not in self._called] if self._nodes else []
        self._called.update(due)
        for key in due:
            # Without this thread's context, what the function prints belongs to the current run.
            call = contextvars.Context().run
            threading.Thread(
                target=call, args=(_called, self._hooks[key]), name="sky-interruption", daemon=True
            ).start()


def _name_of(hook: Callable[[], object]) -> object:
    """Return a hook's key, which is the same for a function that is defined again."""
    name = getattr(hook, "__qualname__", "<")
    return hook if "<" in name or hasattr(hook, "__self__") else (getattr(hook, "__module__", None), name)


def _called(hook: Callable[[], object]) -> None:
    try:
        hook()
    except BaseException:
        with contextlib.suppress(Exception):
            print(f"a function of sky.on_interruption failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)


_pool = PoolInterruption()


def interruption() -> PoolInterruption:
    """Return whether machines of the pool are about to be taken away, and when.

    Providers of spot machines give notice: AWS two minutes before. Test it in a loop,
    ``if sky.interruption(): save()``, or wait for it in a thread, ``sky.interruption().wait()``. All ranks learn of it,
    also on other machines; `PoolInterruption.here` is true on the machine itself.

    Returns
    -------
    PoolInterruption
        The same object each time: true from the notice on, until the pool has replaced the machine. Outside of a pool
        it is false.
    """
    return _pool


def on_interruption(function: Hook) -> Hook:
    """Register a function to call when a machine of the pool will be taken away.

    Each rank that has registered the function calls it once per notice, without arguments, in a thread of its own,
    while the rank's code goes on. If there is a notice already, the function is called at once. A function of the same
    name, as from a cell that runs again, replaces the earlier one. The function stays registered as long as the rank's
    kernel lives.

    Parameters
    ----------
    function : callable
        The function.

    Returns
    -------
    callable
        The same function, so that this works as a decorator.
    """
    _pool.add(function)
    return function


def hear(content: Mapping[str, Any], data: list[bytes]) -> None:
    """Handle the agent's message with all its notices; runs in the control thread."""
    found = {int(node): Interruption(action, at) for node, action, at in content["nodes"]}
    _pool.change(found)
