"""Who wrote each name last, the notebook or the nodes, and what the nodes have been sent.

A `Ledger` is made with a pool and held by whoever runs cells on it. It is told of every cell: of the
notebook's plain cells by `notebook_ran`, of what was bound on the nodes by `sent`, of a ``%%sky``
cell's own assignments by `nodes_wrote`. `collect` asks it which values must be sent.
"""

from __future__ import annotations

import builtins
import copy
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .blobs import fingerprint
from .cell_names import CellNames, is_internal
from .shared_objects import Unit

_ABSENT = object()


@dataclass(frozen=True)
class NameFacts:
    """What is known of a name on the nodes.

    Parameters
    ----------
    name : str
        The name.
    origin : "notebook", "module" or "nodes"
        Where its value comes from.
    when : float
        When it was sent, or when the cell had ended that assigned it on the nodes; seconds since 1970.
    size : int, optional
        Bytes that were sent, or that its arrays have on a rank; None where nobody can tell.
    ranks : frozenset of int, optional
        The ranks that assigned it; None for all.
    gone : bool
        Whether the nodes deleted it.
    stale : bool
        Whether the notebook has had another object under the name since: that one is sent next.
    parts : int
        Of what each rank was sent its part of: how many parts there are.
    """

    name: str
    origin: str
    when: float
    size: int | None = None
    ranks: frozenset[int] | None = None
    gone: bool = False
    stale: bool = False
    parts: int = 0


class _Mark:
    """What the notebook had under a name at some time: the very object, and its content then."""

    def __init__(self, value: Any, digest: str | None, when: float | None = None, size: int | None = None) -> None:
        self.digest, self.size = digest, size
        self.when = time.time() if when is None else when
        # Of what the nodes wrote: the ranks that did, where not all did; and whether it was deleted there.
        self.ranks: frozenset[int] | None = None
        self.gone = False
        # Of what was sent: into how many parts it was cut.
        self.parts = 0
        # What the nodes have of it, or had before they assigned the name.
        self.unit: Unit | None = None
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # Lists, dicts, numbers. An id alone would not do: it is used again.
            self._value = lambda: value

    @property
    def value(self) -> Any:
        """The object, None where it is gone."""
        return self._value()

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
        # What the nodes have under names that the notebook has written since: for `facts` alone.
        self._old: dict[str, NameFacts] = {}
        # What the nodes have of values that the notebook has replaced since, until they are sent the new ones.
        self._past: dict[str, _Mark] = {}
        # Names of the nodes' own of which the other ranks need what the notebook has.
        self._lacking: set[str] = set()
        # Modules that the nodes imported, by name: the full name, and submodules that were imported with it.
        self._imports: dict[str, tuple[str, ...]] = {}
        # Those of them that were lost with their kernels: the ranks that had them, None for all.
        self._unimported: dict[str, frozenset[int] | None] = {}
        self._world_size = 1

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
            if name in self._sent or name in self._nodes:
                self._old[name] = self._facts(name, {})
                mark = self._nodes.get(name) or self._sent[name]
                if mark.unit is not None:
                    self._past[name] = mark
            for kept in (self._sent, self._nodes, self._uses, self._imports, self._unimported):
                kept.pop(name, None)
            self._lacking.discard(name)

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
        *,
        ranks: Mapping[str, Collection[int]] | None = None,
        world_size: int = 0,
        sizes: Mapping[str, int | None] | None = None,
    ) -> None:
        """A ``%%sky`` cell has assigned or deleted `names` on the nodes.

        Parameters
        ----------
        names : iterable of str
            The names, deleted ones too; not those that were only bound from what was sent.
        namespace : dict
            The notebook's namespace now. A later change in it, even in place, is seen.
        uses : mapping, optional
            What the functions and classes read that they are or hold: ``analyse(cell).uses`` and what ranks tell.
        ranks : mapping, optional
            The ranks that wrote each; all, of a name that is not in it.
        world_size : int
            How many ranks there are.
        sizes : mapping, optional
            The names that a rank has afterwards, with their bytes where it can tell. One that is not in
            it is deleted.
        """
        for name in names:
            if is_internal(name):
                continue
            value = namespace.get(name, _ABSENT)
            mark = _Mark(value, None if value is _ABSENT else fingerprint(value, namespace))
            sent, own = self._sent.pop(name, None), self._nodes.get(name)
            if (before := own or sent) is not None and before.is_of(value) and before.digest == mark.digest:
                mark.unit = before.unit
            self._uses.pop(name, None)
            self._old.pop(name, None)
            self._imports.pop(name, None)
            self._unimported.pop(name, None)
            self._past.pop(name, None)
            self._nodes[name] = mark
            wrote = (ranks or {}).get(name)
            everywhere = wrote is None or len(wrote) >= world_size
            if sizes is not None:
                mark.size, mark.gone = sizes.get(name), everywhere and name not in sizes
            if mark.gone and value is _ABSENT:  # Nobody has it any more.
                del self._nodes[name]
                self._lacking.discard(name)
                continue
            if own is not None and (own.gone or own.differs(value, mark.digest, lambda: mark.digest)):  # noqa: B023
                own = None  # The notebook has written it between: who had it has what is old.
            if not everywhere and (own is None or own.ranks is not None):
                mark.ranks = frozenset(wrote or ()).union((own and own.ranks) or ())
                mark.ranks = None if len(mark.ranks) >= world_size else mark.ranks
            had_all = own is not None and name not in self._lacking
            # A rank that did not write it still has what all ranks were sent, where that is what the notebook has.
            as_sent = sent is not None and sent.is_of(value) and sent.digest == mark.digest
            if mark.ranks is None or had_all or as_sent:
                self._lacking.discard(name)
            else:
                self._lacking.add(name)
            if uses and name in uses:
                self._uses[name] = uses[name]

    def sent(
        self,
        name: str,
        digest: str,
        value: Any,
        *,
        size: int | None = None,
        when: float | None = None,
        parts: int = 0,
        unit: Unit | None = None,
    ) -> None:
        """The nodes have bound `name` to the notebook's `value`, or its `parts`, whose content has this digest.

        ``unit`` is what they have of it.
        """
        self._nodes.pop(name, None)
        self._uses.pop(name, None)
        self._lacking.discard(name)
        self._old.pop(name, None)
        self._unimported.pop(name, None)
        self._past.pop(name, None)
        self._sent[name] = mark = _Mark(value, digest, when, size)
        mark.parts, mark.unit = parts, unit

    def unit(self, name: str) -> Unit | None:
        """What the nodes have of the notebook's value of a name, as they were sent it."""
        mark = self._nodes.get(name) or self._sent.get(name)
        return None if mark is None else mark.unit

    def touched(self, ids: Collection[int], namespace: Mapping[str, Any]) -> Iterator[str]:
        """Names that the nodes have and whose values here may have objects of these ids."""
        for kept in (self._sent, self._nodes):
            for name, mark in kept.items():
                if mark.unit is not None and mark.unit.touches(ids) and mark.is_of(namespace.get(name, _ABSENT)):
                    yield name

    def replaced(self, ids: Collection[int]) -> Iterator[tuple[str, Any, str | None, Unit]]:
        """Of names that the notebook has replaced, the old value, its digest and unit, where it may have these ids."""
        for name, mark in self._past.items():
            if mark.unit is not None and mark.unit.touches(ids) and (value := mark.value) is not None:
                yield name, value, mark.digest, mark.unit

    def settle(self, namespace: Mapping[str, Any]) -> None:
        """A cell has been sent: what the notebook has deleted is not needed any more."""
        self._past = {name: mark for name, mark in self._past.items() if name in namespace}

    def nodes_imported(self, imports: Mapping[str, str], modules: Iterable[str], world_size: int) -> None:
        """A ``%%sky`` cell has imported modules; told after `nodes_wrote`.

        Parameters
        ----------
        imports : mapping of str to str
            Their full names, by the names that they are bound to.
        modules : iterable of str
            All that the cell imports by full name, submodules too.
        world_size : int
            How many ranks there are.
        """
        self._world_size = world_size
        every = sorted(modules)
        for name, full in imports.items():
            self._imports[name] = full, *(one for one in every if one.startswith(f"{full}."))

    def hides_builtin(self, name: str) -> bool:
        """Whether the nodes have a value of the notebook's under a name of Python's own, which it has deleted since."""
        return name in self._old and hasattr(builtins, name)

    def import_again(self, name: str) -> tuple[tuple[str, ...], frozenset[int]] | None:
        """What new kernels are to import for a name that the old ones had, and the ranks that are not; else None."""
        if name not in self._imports or name not in self._unimported:
            return None
        lost = self._unimported[name]
        everyone = frozenset(range(self._world_size))
        return self._imports[name], frozenset() if lost is None else everyone - lost

    def owners(self, name: str) -> frozenset[int] | None:
        """The ranks that keep their own, of a name for which the others need the notebook's value; else None."""
        return self._nodes[name].ranks if name in self._lacking else None

    def supplied(self, name: str) -> None:
        """The ranks that lacked `name` have bound the notebook's value, or the module that they had before."""
        self._lacking.discard(name)
        back, mark = self._unimported.pop(name, None), self._nodes.get(name)
        if back and mark is not None and mark.ranks is not None:
            mark.ranks |= back
            mark.ranks = None if len(mark.ranks) >= self._world_size else mark.ranks

    def facts(self, namespace: Mapping[str, Any]) -> list[NameFacts]:
        """What is known of each name on the nodes, in the names' order."""
        old = [replace(one, stale=one.name in namespace) for one in self._old.values()]
        known = [self._facts(name, namespace) for name in self._sent.keys() | self._nodes.keys()]
        return sorted([*known, *old], key=lambda one: one.name)

    def _facts(self, name: str, namespace: Mapping[str, Any]) -> NameFacts:
        own = self._nodes.get(name)
        mark = own or self._sent[name]
        stale = name in namespace and not mark.is_of(namespace[name])
        if own is not None:
            return NameFacts(name, "nodes", own.when, own.size, own.ranks, own.gone, stale)
        module = (mark.digest or "").startswith("import ")
        origin = "module" if module else "notebook"
        return NameFacts(name, origin, mark.when, mark.size, stale=stale, parts=mark.parts)

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

    def unsent(self, new: Collection[int] = (), world_size: int = 0) -> Ledger:
        """A copy that knows what the nodes wrote, and of nothing that they were sent.

        For a rank that may lack what the others have: a new kernel, or the one rank of a call.

        Parameters
        ----------
        new : collection of int
            The ranks whose kernels are new: they have nothing any more.
        world_size : int
            How many ranks there are.
        """
        rest = Ledger()
        for name, mark in self._nodes.items():
            mark = copy.copy(mark)
            if new:
                mark.ranks = (mark.ranks or frozenset(range(world_size))).difference(new)
            if mark.gone or mark.ranks is None or mark.ranks:
                rest._nodes[name] = mark
        rest._imports, rest._world_size = dict(self._imports), world_size or self._world_size
        rest._unimported = dict(self._unimported)
        for name in self._imports:
            lost = (self._importers(name) or frozenset(range(world_size))).intersection(new)
            if lost and (before := self._unimported.get(name, frozenset())) is not None:
                rest._unimported[name] = before | lost
        rest._uses = {name: uses for name, uses in self._uses.items() if name in rest._nodes}
        rest._lacking = {name for name, mark in rest._nodes.items() if mark.ranks and not mark.gone}
        return rest

    def _importers(self, name: str) -> frozenset[int] | None:
        """The ranks that have a module that the nodes imported; None for all."""
        return self._nodes[name].ranks if name in self._nodes else None

    def forget_nodes(self, namespace: Mapping[str, Any]) -> frozenset[str]:
        """The nodes' namespaces are gone: everything is to be sent again.

        Returns
        -------
        frozenset of str
            Names that only the nodes had.
        """
        lost = frozenset(name for name, mark in self._nodes.items() if name not in namespace and not mark.gone)
        # A name that was lost before has no importers now.
        self._unimported |= {name: self._importers(name) for name in self._imports if name not in self._unimported}
        self._sent.clear()
        self._nodes.clear()
        self._uses.clear()
        self._lacking.clear()
        self._old.clear()
        self._past.clear()
        return lost
