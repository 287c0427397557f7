"""Renewal of power files while machines are prepared: no host writes them yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...errors import SkyError
from ...machines import power_watchdog
from ...util.background_tasks import run_all
from ..base.timeouts import TIMEOUTS

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...spec.provider_traits import ProviderTraits


@contextlib.contextmanager
def kept_on(machines: Sequence[Machine], provider: ProviderTraits) -> Iterator[None]:
    """Renew the machines' power files until the block ends.

    Parameters
    ----------
    machines : sequence of Machine
        The machines.
    provider : ProviderTraits
        Their provider; nothing is done if it has no power file.

    Yields
    ------
    None
        While they are kept on.
    """
    file = getattr(provider, "power_file", "")
    if not file:
        yield
        return
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(TIMEOUTS.machines.power):
            renew(machines, file)

    thread = threading.Thread(target=go_on, name="sky-power", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def renew(machines: Sequence[Machine], file: str) -> None:
    """Renew machines' power files, which keep them on; ignore silent machines."""
    line = power_watchdog.keep_line(file)

    def one(machine: Machine) -> None:
        with contextlib.suppress(SkyError, OSError, TimeoutError):
            machine.run(line, timeout=TIMEOUTS.machines.power_call)

    run_all(one, machines, "sky-power")


__all__ = ["kept_on", "renew"]
