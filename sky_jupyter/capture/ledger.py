"""Who wrote each name last, the notebook or the nodes, and what the nodes have been sent.

A `Ledger` is made with a pool and held by whoever runs cells on it. It is told of every cell: of the
notebook's plain cells by `notebook_ran`, of what was bound on the nodes by `sent`, of a ``%%sky``
cell's own assignments by `nodes_wrote`. `collect` asks it which values must be sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .names import CellNames, is_internal
from .payload import fingerprint

_ABSENT = object()


class _Mark:
    """What the notebook had under a name at some time: the very object, and its content then."""

    def __init__(self, value: Any, digest: str | None) -> None:
        self.digest = digest
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # Lists, dicts, numbers. An id alone would not do: it is used again.
            self._value = lambda: value

    def is_of(self, value: Any) -> bool:
        kept = self._value()
        return kept is value and (value is not None or not isinstance(self._value, weakref.ref))

    def differs(self, value: Any, digest: str | None, again: Callable[[], str | None]) -> bool:
        """Whether the notebook now has something else, or the same object with other content.

        `again` makes the digest once more: where two in a row differ, the value's pickle is never
        the same, its digest says nothing, and the same object counts as unchanged.
        """
        if not self.is_of(value):
            return True
        return digest != self.digest and digest == again()


class Ledger:
    """The last writer of each name, for one pool."""

    def __init__(self) -> None:
        self._sent: dict[str, _Mark] = {}
        self._nodes: dict[str, _Mark] = {}
        self._uses: dict[str, frozenset[str]] = {}

    @property
    def nodes_own(self) -> frozenset[str]:
        """Names that the nodes assigned or deleted last, as far as the ledger was told."""
        return frozenset(self._nodes)

    def notebook_wrote(self, names: Iterable[str]) -> None:
        """The notebook has assigned or deleted `names`: its values count from now on.

        They are bound anew even where their content is what was sent before, since the nodes may have
        changed theirs in place.
        """
        for name in names:
            for kept in (self._sent, self._nodes, self._uses):
                kept.pop(name, None)

    def notebook_ran(self, cell: CellNames, namespace: Mapping[str, Any], *, finished: bool = True) -> None:
        """A plain cell has run; of the names that it may have written, find those that it did write.

        Parameters
        ----------
        cell : CellNames
            The cell, as `analyse` gives it.
        namespace : mapping
            The notebook's namespace after the cell.
        finished : bool
            Whether it ended without an error.
        """
        sure = cell.sure if finished else frozenset()
        self.notebook_wrote(name for name in cell.writes if name in sure or self._replaced(name, namespace))

    def _replaced(self, name: str, namespace: Mapping[str, Any]) -> bool:
        mark = self._nodes.get(name) or self._sent.get(name)
        return mark is not None and not mark.is_of(namespace.get(name, _ABSENT))

    def nodes_wrote(
        self,
        names: Iterable[str],
        namespace: dict[str, Any],
        uses: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """A ``%%sky`` cell has assigned or deleted `names` on the nodes.

        Parameters
        ----------
        names : iterable of str
            The names, deleted ones too; not those that were only bound from what was sent.
        namespace : dict
            The notebook's namespace now. A later change in it, even in place, is seen.
        uses : mapping, optional
            What the functions among them read: ``analyse(cell).uses``.
        """
        for name in names:
            if is_internal(name):
                continue
            self._sent.pop(name, None)
            self._uses.pop(name, None)
            value = namespace.get(name, _ABSENT)
            self._nodes[name] = _Mark(value, None if value is _ABSENT else fingerprint(value, namespace))
            if uses and name in uses:
                self._uses[name] = uses[name]

    def sent(self, name: str, digest: str, value: Any) -> None:
        """The nodes have bound `name` to the notebook's `value`, whose content has this digest."""
        self._nodes.pop(name, None)
        self._uses.pop(name, None)
        self._sent[name] = _Mark(value, digest)

    def must_send(self, name: str, value: Any, digest: str | None, again: Callable[[], str | None]) -> bool:
        """Whether the notebook's `value` is to be bound on the nodes, by the rule of the last writer.

        Parameters
        ----------
        name : str
            A name that a cell reads and the notebook has.
        value : Any
            The notebook's value.
        digest : str or None
            Of its content now; None where it cannot be pickled.
        again : callable
            Makes the digest once more.
        """
        mark = self._nodes.get(name) or self._sent.get(name)
        return mark is None or mark.differs(value, digest, again)

    def uses(self, name: str) -> frozenset[str]:
        """Names that the nodes' own function of this name reads."""
        return self._uses.get(name, frozenset())

    def unsent(self) -> Ledger:
        """A copy that knows what the nodes wrote, and of nothing that they were sent.

        For a rank that may lack what the others have: a new kernel, or the one rank of a call.
        """
        copy = Ledger()
        copy._nodes, copy._uses = dict(self._nodes), dict(self._uses)
        return copy

    def forget_nodes(self, namespace: Mapping[str, Any]) -> frozenset[str]:
        """The nodes' namespaces are gone: everything is to be sent again.

        Returns
        -------
        frozenset of str
            Names that only the nodes had.
        """
        lost = frozenset(name for name in self._nodes if name not in namespace)
        self._sent.clear()
        self._nodes.clear()
        self._uses.clear()
        return lost
