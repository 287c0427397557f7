"""What the parts of a pool know of it: values, and a few questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..spec.pool_spec import PoolSpec
from .base.events import Listener
from .control.client import Control
from .hosts.host import Host


class PoolContext(Protocol):
    """The pool, as all of its parts may use it; who needs more of it says so in a protocol of its own."""

    @property
    def id(self) -> str:
        """The pool's own name, which no other pool has had."""
        ...

    @property
    def spec(self) -> PoolSpec:
        """What it was made from."""
        ...

    @property
    def hosts(self) -> Sequence[Host]:
        """Who runs its nodes; they change with `resize` and `restart`."""
        ...

    @property
    def control(self) -> Control:
        """What its agents are asked by; PoolError where there is none yet."""
        ...

    @property
    def has_control(self) -> bool:
        """Whether `control` is there."""
        ...

    def require_live(self, *, restarting: bool = False) -> None:
        """Refuse a pool that can run nothing now; PoolError says why."""
        ...

    def phase(self, phase: str, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """Tell of a phase of the pool's start or change while it lasts; gives what tells a line of it."""
        ...

    def notify(self, text: str) -> None:
        """Tell whoever listens to the pool's start and changes."""
        ...


class Standstill(Protocol):
    """What is known of processes that do not answer."""

    def telling(self, listener: Listener) -> AbstractContextManager[None]:
        """Tell a listener as well while it waits for an answer."""
        ...

    @property
    def why(self) -> str:
        """The end of a message: which of them stands still; empty where none is known to."""
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is known, in words."""
        ...

    @property
    def is_halted(self) -> bool:
        """Whether the pool's head is known to stand still."""
        ...


class TransferContext(PoolContext, Protocol):
    """What those who move files and values need besides."""

    @property
    def state(self) -> str:
        """What the pool can do now."""
        ...

    @property
    def broken(self) -> str:
        """Why it can do nothing, in words."""
        ...

    @property
    def shape(self) -> int:
        """How often its nodes were changed."""
        ...

    @property
    def machines(self) -> Sequence[Any]:
        """The other machines that its nodes are on."""
        ...

    @property
    def watchdog(self) -> Standstill:
        """Who stands still."""
        ...
