"""Lasting problems: reported when they begin, shown until they are over."""

from __future__ import annotations

from ...pool.base.events import TroubleEvent


class Troubles:
    """Current problems by subject, of a start's or calls' view; any thread."""

    def __init__(self) -> None:
        self._events: dict[str, TroubleEvent] = {}

    def take(self, event: TroubleEvent) -> bool:
        """Note that a problem began, changed or is over; return False if that was known."""
        before = self._events.pop(event.about, None)
        if event.over:
            return before is not None
        self._events[event.about] = event
        return before is None or before.text != event.text

    @property
    def events(self) -> tuple[TroubleEvent, ...]:
        """Current problems, the newest last."""
        return tuple(self._events.values())
