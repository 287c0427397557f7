"""Secret texts: neither shown nor stored, and sent only by a pool to its ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_sending: ContextVar[bool] = ContextVar("sky_jupyter_sending", default=False)
_HIDDEN = "***"


class Secret:
    """Text such as a token; prints as ``***`` and pickles as empty.

    So the text is not in a pool's record, a captured value, a notebook or a log. Only the pool sends it,
    over its own channel; see `sending`.

    Parameters
    ----------
    value : str, optional
        The text. If it is None, `find` looks it up when it is needed.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | None = None) -> None:
        self._value = value

    def find(self) -> str | None:
        """Look up the text of an object that has none, such as an unpickled one.

        Returns
        -------
        str or None
            None; a subclass may return a text.
        """
        return None

    def reveal(self) -> str | None:
        """Return the text.

        Returns
        -------
        str or None
            None if it is not known here.
        """
        return self._value if self._value is not None else self.find()

    def __repr__(self) -> str:
        return _HIDDEN

    def __format__(self, spec: str) -> str:
        return format(_HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # An unknown secret equals any: a pool that was attached to is the same pool.
        return self._value is None or other._value is None or self._value == other._value

    def __hash__(self) -> int:
        return hash(Secret)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.reveal(),) if _sending.get() else ())


@contextlib.contextmanager
def sending() -> Iterator[None]:
    """Pickle secrets with their text inside the block.

    Use it only for bytes that are sent to a pool's agents and stored nowhere.
    """
    token = _sending.set(True)
    try:
        yield
    finally:
        _sending.reset(token)
