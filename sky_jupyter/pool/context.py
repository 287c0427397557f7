"""Protocols for what the parts of a pool may use of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from ..spec.pool_spec import PoolSpec
from .base.events import Listener

if TYPE_CHECKING:
    from .control.control_client import Control
    from .hosts.launch import Host


class PoolContext(Protocol):
    """The pool as its parts see it; parts that need more extend this."""

    @property
    def id(self) -> str:
        """Return the pool's unique id; no other pool has had it."""
        ...

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def hosts(self) -> Sequence[Host]:
        """Return its nodes' hosts, which `resize` and `restart` change."""
        ...

    @property
    def control(self) -> Control:
        """Return the agents' client; raise PoolError if there is none yet."""
        ...

    @property
    def has_control(self) -> bool: ...

    def require_live(self, *, restarting: bool = False) -> None:
        """Raise PoolError with the reason if the pool cannot run now."""
        ...

    def phase(self, phase: str, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """Report a phase; yield a function that reports a line of it."""
        ...

    def notify(self, text: str) -> None:
        """Send a notice to the listener of the pool's start and changes."""
        ...


class WatchdogStatus(Protocol):
    """Processes that do not answer."""

    def telling(self, listener: Listener) -> AbstractContextManager[None]:
        """Send news to this listener too, inside the context."""
        ...

    @property
    def why(self) -> str:
        """Return a suffix for messages that names what stands still, or ""."""
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """Return what stands still: the subject, and a description."""
        ...

    @property
    def is_halted(self) -> bool:
        """Return whether the pool's head is known to stand still."""
        ...


class TransferContext(PoolContext, Protocol):
    """The pool as seen by transfers of files and values."""

    @property
    def state(self) -> str: ...

    @property
    def broken(self) -> str:
        """Return why the pool is broken; "" if it is not."""
        ...

    @property
    def shape(self) -> int:
        """Return how often the pool's nodes have been changed."""
        ...

    @property
    def machines(self) -> Sequence[Any]:
        """Return the remote machines of the pool."""
        ...

    @property
    def watchdog(self) -> WatchdogStatus: ...
