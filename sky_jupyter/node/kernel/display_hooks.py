"""Display hooks for output that IPython leaves to a front end.

A front end reads pager texts, new cells, and results other than the last from the reply to a cell. A rank has no front
end, and its run has one result: here they become output, in order with the cell's other output.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from IPython.core.payload import PayloadManager

_NO_CELLS = "# A rank adds no cell to the notebook. This is its text:\n"


class ShownPayloads(PayloadManager):
    """Payload manager that displays payloads at once."""

    def write_payload(self, data: Any, single: bool = True) -> None:
        """Show a payload of ``x?``, ``%prun`` or ``%load``."""
        source = data.get("source") if isinstance(data, Mapping) else None
        if source == "page":
            # Every rank has the same text; one of them shows it.
            if getattr(self.parent, "sky_pages", True):
                self._show(data["data"])
        elif source == "set_next_input":
            self._show({"text/plain": f"{_NO_CELLS}{data['text']}"})
        else:
            print(f"{source} needs a front end, which a rank does not have", file=sys.stderr)

    def _show(self, data: Any) -> None:
        publisher = getattr(self.parent, "display_pub", None)
        if publisher is not None:
            publisher.publish(dict(data))


class RankDisplayHook(ZMQShellDisplayHook):
    """Display hook that shows intermediate results as output."""

    def start_displayhook(self) -> None:
        """Start a result message; ``display_data`` for an intermediate result."""
        super().start_displayhook()
        if self.session and getattr(self.shell, "sky_goes_on", False):
            content: dict[str, Any] = {"data": {}, "metadata": {}, "transient": {}}
            self.msg = self.session.msg("display_data", content, parent=self.parent_header)
