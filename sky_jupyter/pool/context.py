"""Protocols: what the parts of a pool may use of it."""

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
        """The pool's unique id; no other pool has had it."""
        ...

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts of its nodes, which `resize` and `restart` change."""
        ...

    @property
    def control(self) -> Control:
        """The client of the agents; PoolError if there is none yet."""
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
        """The troubles of the pool as a suffix for messages, or ""."""
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """The current troubles: subject -> description."""
        ...

    @property
    def is_halted(self) -> bool:
        """Whether a stopped process keeps the pool from answering."""
        ...


class TransferContext(PoolContext, Protocol):
    """The pool as seen by transfers of files and values."""

    @property
    def state(self) -> str: ...

    @property
    def broken(self) -> str:
        """The reason why the pool is broken; "" if it is not."""
        ...

    @property
    def shape(self) -> int:
        """The number of resizes since the pool's hosts were made."""
        ...

    @property
    def machines(self) -> Sequence[Any]:
        """The remote machines of the pool."""
        ...

    @property
    def watchdog(self) -> WatchdogStatus: ...
