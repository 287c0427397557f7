"""Log records of a pool, under the logger ``sky_jupyter.pool``.

Phases of its start are INFO, failures WARNING, runs and single lines DEBUG. The output of ranks, variables, tokens and
URLs with passwords are not logged.
"""

from __future__ import annotations

import logging

from ...errors import SpecError
from ...spec.options import LogConfig, Options
from .events import Event, NoticeEvent, PhaseEvent

ROOT = "sky_jupyter"
_FORM = "%(asctime)s %(levelname)s %(message)s"

# Records are discarded unless the program configures logging.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class PoolLog:
    """Logger of one pool, with the handler that `Options.logging` asks for."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._logger = logging.getLogger(f"{ROOT}.pool.{name}")
        self._handler: logging.Handler | None = None
        self._before = logging.NOTSET
        self._asked = options.logging

    def open(self) -> None:
        """Install the handler; raise SpecError if it cannot open its file."""
        asked = LogConfig(self._asked) if type(self._asked) in (int, str) else self._asked  # type: ignore[arg-type]
        if not isinstance(asked, LogConfig) or self._handler is not None:
            return
        try:
            handler = logging.FileHandler(asked.file) if asked.file else logging.StreamHandler()
        except OSError as error:
            raise SpecError(f"the log file {asked.file} cannot be written: {error.strerror or error}") from None
        handler.setLevel(asked.level)
        handler.setFormatter(logging.Formatter(_FORM))
        self._handler, self._before = handler, self._logger.level
        self._logger.setLevel(asked.level)
        self._logger.addHandler(handler)

    def close(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            self._logger.removeHandler(handler)
            self._logger.setLevel(self._before)
            handler.close()

    def write(self, level: int, text: str) -> None:
        if self._asked is not False:
            self._logger.log(level, "pool %s: %s", self._name, text)

    def on_event(self, event: Event) -> None:
        """Log phases and notices of the pool's start."""
        if isinstance(event, PhaseEvent):
            if event.done:
                self.write(logging.INFO, f"{event.phase} done after {event.elapsed:.1f} s")
            else:
                self.write(logging.DEBUG, f"{event.phase}: {event.text}")
        elif isinstance(event, NoticeEvent) and event.text:
            self.write(logging.INFO, event.text)
