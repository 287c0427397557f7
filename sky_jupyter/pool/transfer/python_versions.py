"""Python versions of nodes, which may not run the notebook's functions.

Cells and project modules are sent as source, which any version runs. Functions and classes of the notebook are sent as
code objects, which only run on the same minor version: they are refused beforehand. For returned values, see
`node.serialization.code_portability`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...capture.collect import Capture, Carried
from ...errors import BootstrapError, CaptureError, PoolError
from ...node.protocol import rpc
from ...node.protocol.version import PROTOCOL
from ...node.serialization.code_portability import PYTHON, find_code_object
from ..context import PoolContext
from ..registry.pool_record import unfit

_SHOWN = 3


class PoolPythons:
    """Python versions of one pool's nodes; made with it."""

    def __init__(self, pool: PoolContext) -> None:
        self.pool = pool
        # Nodes by minor version, without the notebook's own.
        self.others: dict[str, list[int]] = {}

    async def learn(self) -> str:
        """Ask all nodes for their version; return a notice, or "".

        Raises PoolError if a node speaks another protocol.
        """
        found: dict[str, list[int]] = {}
        for node, answer in sorted((await self.pool.control.ask(rpc.PYTHON)).items()):
            # Packages without a protocol number answered with the version alone.
            python, protocol = (answer["python"], answer["protocol"]) if isinstance(answer, dict) else (answer, 0)
            if protocol != PROTOCOL:
                raise PoolError(unfit(self.pool.spec.name, protocol))
            found.setdefault(str(python), []).append(node)
        found.pop(PYTHON, None)
        self.others = found
        if not found:
            return ""
        return (
            f"{self._why}: cells run there as they are, functions and classes of the notebook cannot go. "
            f"{self._way_out}"
        )

    @property
    def reader(self) -> dict[str, Any]:
        """The request field that tells ranks which Python reads their values."""
        return {"python": PYTHON} if self.others else {}

    def fitting(self, capture: Capture) -> Capture:
        """Return a capture without code objects, where these fail.

        Values that may not be read are dropped. Raises CaptureError if a required value has code in it.
        """
        if not self.others or not capture.carried:
            return capture
        needed = {label: its for label, its in capture.carried.items() if its.required}
        if needed:
            raise CaptureError(f"{_told(needed)} cannot go to the nodes: {self._why}. {self._way_out}")
        left = tuple(one for one in capture.bindings if one.name not in capture.carried)
        return replace(capture, bindings=left, carried={})

    def check_plugins(self) -> None:
        """Raise BootstrapError for plugins with notebook functions."""
        for plugin in self.pool.spec.plugins if self.others else ():
            if name := find_code_object(plugin):
                raise BootstrapError(
                    "plugins",
                    f"plugin {plugin.name!r} has the function {name!r} of the notebook, which cannot go to the nodes: "
                    f"{self._why}. {self._way_out}",
                )

    @property
    def _why(self) -> str:
        return (
            f"{self._there} Python {' and '.join(sorted(self.others))}, the notebook {PYTHON}, and the code of "
            "functions and classes is made for one of them"
        )

    @property
    def _there(self) -> str:
        few = sorted({node for nodes in self.others.values() for node in nodes})
        if len(few) == self.pool.spec.nodes:
            return "the nodes run"
        return f"node{'s' if len(few) > 1 else ''} {', '.join(map(str, few))} run{'' if len(few) > 1 else 's'}"

    @property
    def _way_out(self) -> str:
        return (
            f"Make the pool with `--python {PYTHON}` (`sky.Image(python=…)`), define them in a %%sky cell, or put "
            "them into a module of your project, which goes as source"
        )


def _told(needed: Mapping[str, Carried]) -> str:
    """Describe the values that have code in them, and its functions."""
    texts = []
    for label, its in list(needed.items())[:_SHOWN]:
        within = [name for name in its.functions if name != label]
        texts.append(label + (f" ({', '.join(within[:_SHOWN])})" if within and label not in its.functions else ""))
    more = len(needed) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")
