"""What is the matter, and lasts: told once as it begins, shown until it is over, whatever comes meanwhile."""

from __future__ import annotations

from ...pool.base.events import TroubleEvent


class Troubles:
    """Made and held by the view of a start or transfer; by what each is about. Any thread."""

    def __init__(self) -> None:
        self._events: dict[str, TroubleEvent] = {}

    def take(self, event: TroubleEvent) -> None:
        """Take in that something is the matter, in the place of what was known of it, or is over."""
        self._events.pop(event.about, None)
        if not event.over:
            self._events[event.about] = event

    @property
    def events(self) -> tuple[TroubleEvent, ...]:
        """What is the matter now, the newest last."""
        return tuple(self._events.values())
