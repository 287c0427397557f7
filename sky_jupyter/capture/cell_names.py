"""Names that a cell reads and writes.

A name counts as read if it *could* be read before the cell has certainly written it: a name that is left out is missing
on the nodes, one too many only costs a transfer.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from .name_flow import NameFlow, compiled

_INTERNAL = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[ido]h|_exit_code|In|Out|exit|quit|display|get_ipython")
_MODULES_OWN = {"name", "doc", "file", "spec", "loader", "package", "builtins", "builtin", "annotations", "session"}
_MODULES_OWN |= {"cached", "dict", "annotate", "conditional_annotations", "path", "class", "main"}


def is_internal(name: str) -> bool:
    """Return True for a name of IPython or Python itself, which is never sent."""
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2] in _MODULES_OWN or len(name) < 5
    return _INTERNAL.fullmatch(name) is not None


@dataclass(frozen=True)
class CellNames:
    """Result of `analyse`.

    Parameters
    ----------
    reads : frozenset of str
        Names that the cell may read from the namespace before it has certainly written them.
    writes : frozenset of str
        Names that it may bind or delete in the namespace.
    shell : frozenset of str
        Those of `reads` in shell lines and magics.
    weak : frozenset of str
        Those of `reads` that are guesses, or that the cell has most likely written itself before: sent if possible, and
        no reason to refuse the cell.
    sure : frozenset of str
        Those of `writes` that are certainly written if the cell ends without an error.
    dropped : frozenset of str
        Those of `writes` that the cell finally deletes, as far as its source shows.
    uses : mapping of str to frozenset of str
        Names read by the code of each function and class that the cell defines.
    attributes : frozenset of str
        Attribute names in the code, for finding submodules.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    shell: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    uses: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    attributes: frozenset[str] = frozenset()


def analyse(source: str) -> CellNames:
    """Return the names that a cell reads and writes.

    ``source`` is Python, the output of IPython's ``transform_cell``. Raise SyntaxError if it is invalid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are shown where the cell runs.
        tree = ast.parse(source)
        compiled(tree)  # Some syntax errors are found only here.
        flow = NameFlow()
        flow.follow_cell(tree)
    reads = frozenset(flow.reads)
    return CellNames(
        reads=reads,
        writes=frozenset(flow.writes),
        shell=frozenset(name for name in flow.shell & reads if not is_internal(name)),
        weak=reads - flow.strong,
        sure=frozenset(flow.sure & flow.writes),
        dropped=frozenset(flow.dropped),
        uses={name: frozenset(uses) for name, uses in flow.uses.items()},
        attributes=frozenset(flow.attributes),
    )
