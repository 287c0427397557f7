"""Which names a cell reads and writes.

A name counts as read when it *could* be read before the cell has surely written it: what is left out
here is missing on the nodes, what is too much is only sent for nothing.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from .name_flow import Flow, compiled

_INTERNAL = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[ido]h|_exit_code|In|Out|exit|quit|display|get_ipython")
_MODULES_OWN = {"name", "doc", "file", "spec", "loader", "package", "builtins", "builtin", "annotations", "session"}
_MODULES_OWN |= {"cached", "dict", "annotate", "conditional_annotations", "path", "class", "main"}


def is_internal(name: str) -> bool:
    """Whether `name` belongs to IPython or Python in every namespace, and so is never sent."""
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2] in _MODULES_OWN or len(name) < 5
    return _INTERNAL.fullmatch(name) is not None


@dataclass(frozen=True)
class CellNames:
    """What `analyse` found.

    Parameters
    ----------
    reads : frozenset of str
        Names that the cell may read from the namespace before it has surely written them.
    writes : frozenset of str
        Names that it may bind or delete in the namespace.
    shell : frozenset of str
        Those of `reads` that stand in shell lines and magics.
    weak : frozenset of str
        Those of `reads` that are only guessed at, or that the cell reads only where it has most
        likely written them itself: sent where possible, no reason to refuse the cell.
    sure : frozenset of str
        Those of `writes` that a cell that ends without an error has certainly written.
    dropped : frozenset of str
        Those of `writes` that the cell last deletes, as far as its text tells.
    uses : mapping of str to frozenset of str
        For each function and class that the cell defines, the names that its code reads.
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
    """The names that a cell reads and writes.

    Parameters
    ----------
    source : str
        Python as IPython's ``transform_cell`` leaves it.

    Raises
    ------
    SyntaxError
        As Python raises it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are given where the cell runs.
        tree = ast.parse(source)
        compiled(tree)  # Some errors of syntax are found only here.
        flow = Flow()
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
