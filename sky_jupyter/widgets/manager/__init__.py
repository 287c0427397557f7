"""Relay of comms between a pool's ranks and the notebook's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...display.base.frontends import in_notebook

if TYPE_CHECKING:
    from ...pool.pool import Pool


def attach(pool: Pool) -> None:
    """Show the widgets of a live pool's ranks, if this process has pages for them."""
    if not in_notebook():
        return
    from IPython import get_ipython

    from . import widget_mirror
    from .comm_relay import Comms

    kernel = get_ipython().kernel
    if isinstance(getattr(kernel, "control_handlers", None), dict) and hasattr(kernel, "comm_manager"):
        comms = Comms(pool.supervisor.ask)
        pool.supervisor.extend("comms", comms)
        comms.listen(widget_mirror.of(kernel).mirror(pool.id, comms.send))
