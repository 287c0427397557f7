"""Notices from the agents that machines of a pool are about to be taken away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...node.runtime.interruption import RISK
from ...util.validate import is_number
from ..base.timeouts import TIMEOUTS
from .unresponsive_notices import Watchdog

_MOST_TEXT = 40
# The notice is repeated when so many seconds are left.
_REMINDERS = (TIMEOUTS.machines.reminder, TIMEOUTS.machines.last_reminder)


@dataclass(frozen=True)
class Notice:
    """Announced end of one machine.

    Parameters
    ----------
    action : str
        What its provider does to it.
    at : float or None
        When, on this process's monotonic clock; None if that is unknown.
    """

    action: str
    at: float | None

    @property
    def left(self) -> float | None:
        """The seconds left, not below 0; None if unknown."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())


class InterruptionNotices:
    """Notices of one pool, by node; changed on the loop only.

    Parameters
    ----------
    watchdog : Watchdog
        Shows them as long as they last.
    who : callable
        Returns a node's name for messages.
    """

    def __init__(self, watchdog: Watchdog, who: Callable[[int], str]) -> None:
        self._watchdog, self._who = watchdog, who
        self.nodes: dict[int, Notice] = {}
        # Called with each node whose machine will be taken away for sure, and with each for which that is withdrawn.
        self.on_notice: Callable[[int], None] = _ignore
        self.on_withdrawn: Callable[[int], None] = _ignore

    def take(self, node: int, facts: Any) -> bool:
        """Handle an agent's untrusted report; return whether it announces a new loss."""
        notice = _read(facts)
        known = self.nodes.get(node)
        if notice is None:
            if known is not None:
                self._withdraw(node)
            return False
        if known is not None and known.action == notice.action:
            return False
        self.nodes[node] = notice
        self._watchdog.trouble(_key(node), self._text(node, notice))
        if notice.action == RISK:
            return False
        for seconds in _REMINDERS:
            if notice.left is not None and notice.left > seconds:
                asyncio.get_running_loop().call_later(notice.left - seconds, self._remind, node, notice)
        self.on_notice(node)
        return True

    def _remind(self, node: int, notice: Notice) -> None:
        """Repeat a notice, with the seconds that are left."""
        if self.nodes.get(node) is notice and _key(node) in self._watchdog.troubles:
            self._watchdog.trouble(_key(node), self._text(node, notice))

    def forget(self, node: int | None = None) -> None:
        """Forget the notice of a node, as it has another machine; by default, all."""
        for each in list(self.nodes) if node is None else [node]:
            if self.nodes.pop(each, None) is not None:
                self._watchdog.over(_key(each))

    def is_taken(self, node: int) -> bool:
        """Return whether a node's machine is taken away for sure."""
        return node in self.nodes and self.nodes[node].action != RISK

    def why_lost(self, node: int) -> str:
        """Return why a lost node's machine is gone, if it was to be taken away; else ""."""
        if not self.is_taken(node):
            return ""
        notice = self.nodes[node]
        # The loss has happened: it is not announced any more.
        self._watchdog.over(_key(node))
        return f"its provider has taken the machine away ({notice.action})"

    @property
    def told(self) -> dict[str, str]:
        """A sentence for each announced loss whose machine still exists, by node name."""
        there = {node: one for node, one in list(self.nodes.items()) if _key(node) in self._watchdog.troubles}
        return {self._who(node): _sentence("its machine", one) for node, one in there.items()}

    def _withdraw(self, node: int) -> None:
        del self.nodes[node]
        self.on_withdrawn(node)
        self._watchdog.over(_key(node), f"the machine of {self._who(node)} is not taken away after all")

    def _text(self, node: int, notice: Notice) -> str:
        return _sentence(f"the machine of {self._who(node)}", notice)


def _sentence(machine: str, notice: Notice) -> str:
    if notice.action == RISK:
        return f"{machine} may be taken away soon, says its provider"
    if notice.left is None:
        return f"{machine} is taken away soon ({notice.action})"
    clock = time.strftime("%H:%M:%S", time.localtime(time.time() + notice.left))
    return f"{machine} is taken away in {notice.left:.0f} s, at {clock} ({notice.action})"


def _ignore(node: int) -> None:
    """Do nothing."""


def _key(node: int) -> str:
    return f"interruption {node}"


def _read(facts: Any) -> Notice | None:
    if not isinstance(facts, (list, tuple)) or len(facts) != 2:
        return None
    action, left = facts
    if not isinstance(action, str) or not action.isprintable() or not 0 < len(action) <= _MOST_TEXT:
        return None
    if left is None:
        return Notice(action, None)
    if not is_number(left) or not math.isfinite(left):
        return None
    return Notice(action, time.monotonic() + max(0.0, float(left)))
