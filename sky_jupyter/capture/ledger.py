"""Ledger of a pool: the last writer of each name, and the values sent.

A `Ledger` is made with a pool and used by the code that runs cells on it. It records each cell: plain cells by
`notebook_ran`, names bound on the nodes by `sent`, assignments of ``%%sky`` cells by `nodes_wrote`. `collect` asks it
which values must be sent.
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
from .shared_references import Unit

_ABSENT = object()


@dataclass(frozen=True)
class NameFacts:
    """Facts about a name on the nodes.

    Parameters
    ----------
    name : str
        The name.
    origin : "notebook", "module" or "nodes"
        Source of its value.
    when : float
        When it was sent, or when the cell that assigned it on the nodes ended; seconds since 1970.
    size : int, optional
        Bytes sent, or bytes of its arrays on a rank; None if unknown.
    ranks : frozenset of int, optional
        Ranks that assigned it; None for all.
    gone : bool
        True if the nodes deleted it.
    stale : bool
        True if the notebook has assigned another object since, which is sent next.
    parts : int
        Number of parts of a sharded value.
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
    """Reference to the notebook's object under a name, with its digest at that time."""

    def __init__(self, value: Any, digest: str | None, when: float | None = None, size: int | None = None) -> None:
        self.digest, self.size = digest, size
        self.when = time.time() if when is None else when
        # For a value of the nodes: ranks that wrote it, None for all; and whether it was deleted there.
        self.ranks: frozenset[int] | None = None
        self.gone = False
        # For a sharded value: the number of parts.
        self.parts = 0
        # Objects that the nodes have of it, or had before they assigned the name.
        self.unit: Unit | None = None
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # Lists, dicts, numbers. An id alone would not be enough: ids are reused.
            self._value = lambda: value

    @property
    def value(self) -> Any:
        """The object; None if it was garbage-collected."""
        return self._value()

    def is_of(self, value: Any) -> bool:
        kept = self._value()
        return kept is value and (value is not None or not isinstance(self._value, weakref.ref))

    def differs(self, value: Any, digest: str | None, again: Callable[[], str | None]) -> bool:
        """Return True if the notebook has another object now, or other content.

        ``again`` computes the digest once more. If it differs each time, the pickle is not deterministic, and the same
        object counts as unchanged.
        """
        if not self.is_of(value):
            return True
        return digest != self.digest and digest == again()


class Ledger:
    """Last writer of each name, for one pool."""

    def __init__(self) -> None:
        self._sent: dict[str, _Mark] = {}
        self._nodes: dict[str, _Mark] = {}
        self._uses: dict[str, frozenset[str]] = {}
        # Names on the nodes that the notebook has written since: for `facts`, and to know deleted names.
        self._old: dict[str, NameFacts] = {}
        # Values on the nodes that the notebook has replaced since, until the new ones are sent.
        self._past: dict[str, _Mark] = {}
        # Names that some ranks have assigned and the others need from the notebook.
        self._lacking: set[str] = set()
        # Modules imported by the nodes, by name: full name, and submodules imported with it.
        self._imports: dict[str, tuple[str, ...]] = {}
        # For names that `from` imports have bound: the name in the module.
        self._members: dict[str, str] = {}
        # Imported names that were lost with kernels: the ranks that had them, None for all.
        self._unimported: dict[str, frozenset[int] | None] = {}
        self._world_size = 1
        # Increases with each change.
        self.version = 0

    @property
    def nodes_own(self) -> frozenset[str]:
        """Names that the nodes assigned or deleted last."""
        return frozenset(self._nodes)

    def notebook_wrote(self, names: Iterable[str]) -> None:
        """Record that the notebook has assigned or deleted names: its values count now.

        They are sent again even if their content was sent before, since the nodes may have changed theirs in place.
        """
        for name in names:
            if name in self._sent or name in self._nodes:
                self._old[name] = self._facts(name, {})
                mark = self._nodes.get(name) or self._sent[name]
                if mark.unit is not None:
                    self._past[name] = mark
            for kept in (self._sent, self._nodes, self._uses, self._imports, self._members, self._unimported):
                if name in kept:
                    self.version += 1
                    del kept[name]
            self._lacking.discard(name)

    def notebook_ran(self, cell: CellNames, namespace: Mapping[str, Any], *, finished: bool = True) -> None:
        """Record a plain cell; find the names that it has written.

        Parameters
        ----------
        cell : CellNames
            The cell, as returned by `analyse`.
        namespace : mapping
            The notebook's namespace after the cell.
        finished : bool
            True if it ended without an error.
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
        """Record that a ``%%sky`` cell has assigned or deleted names on the nodes.

        Parameters
        ----------
        names : iterable of str
            Assigned and deleted names, without those that were only bound from sent values.
        namespace : dict
            The notebook's namespace now. Later changes in it are detected, even in place.
        uses : mapping, optional
            Names that functions and classes in the values read: ``analyse(cell).uses``, and what ranks report.
        ranks : mapping, optional
            Ranks that wrote each name; all ranks for a missing name.
        world_size : int
            Number of ranks.
        sizes : mapping, optional
            Names that a rank has afterwards, with their bytes if known. A missing name was deleted.
        """
        self.version += 1
        for name in names:
            if is_internal(name, namespace):
                continue
            value = namespace.get(name, _ABSENT)
            mark = _Mark(value, None if value is _ABSENT else fingerprint(value, namespace))
            sent, own = self._sent.pop(name, None), self._nodes.get(name)
            if (before := own or sent) is not None and before.is_of(value) and before.digest == mark.digest:
                mark.unit = before.unit
            self._uses.pop(name, None)
            self._old.pop(name, None)
            self._imports.pop(name, None)
            self._members.pop(name, None)
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
                own = None  # The notebook has written it in between: the ranks' values are outdated.
            if not everywhere and (own is None or own.ranks is not None):
                mark.ranks = frozenset(wrote or ()).union((own and own.ranks) or ())
                mark.ranks = None if len(mark.ranks) >= world_size else mark.ranks
            had_all = own is not None and name not in self._lacking
            # A rank that did not write it still has the value that all ranks were sent, if the notebook has the same.
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
        """Record that the nodes have bound a name to the notebook's value.

        ``digest`` is that of its content, ``parts`` the number of parts of a sharded value, and ``unit`` its objects on
        the nodes.
        """
        self.version += 1
        self._nodes.pop(name, None)
        self._uses.pop(name, None)
        self._lacking.discard(name)
        self._old.pop(name, None)
        self._unimported.pop(name, None)
        self._past.pop(name, None)
        self._sent[name] = mark = _Mark(value, digest, when, size)
        mark.parts, mark.unit = parts, unit

    def unit(self, name: str) -> Unit | None:
        """Return the objects that the nodes have of a name's value."""
        mark = self._nodes.get(name) or self._sent.get(name)
        return None if mark is None else mark.unit

    def touched(self, ids: Collection[int], namespace: Mapping[str, Any]) -> Iterator[str]:
        """Yield names on the nodes whose values here may contain objects of these ids."""
        for kept in (self._sent, self._nodes):
            for name, mark in kept.items():
                if mark.unit is not None and mark.unit.touches(ids) and mark.is_of(namespace.get(name, _ABSENT)):
                    yield name

    @property
    def has_replaced(self) -> bool:
        """Whether the notebook has replaced shared values, and not sent the new ones."""
        return bool(self._past)

    def replaced(self, ids: Collection[int]) -> Iterator[tuple[str, Any, str | None, Unit]]:
        """Yield replaced values that may contain objects of these ids.

        Each comes with its name, digest and unit.
        """
        for name, mark in self._past.items():
            if mark.unit is not None and mark.unit.touches(ids) and (value := mark.value) is not None:
                yield name, value, mark.digest, mark.unit

    def settle(self, namespace: Mapping[str, Any]) -> None:
        """Record that a cell was sent: forget values that the notebook has deleted."""
        self.version += 1
        self._past = {name: mark for name, mark in self._past.items() if name in namespace}

    def nodes_imported(
        self,
        imports: Mapping[str, str],
        modules: Iterable[str],
        world_size: int,
        members: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Record what a ``%%sky`` cell has imported; call it after `nodes_wrote`.

        Parameters
        ----------
        imports : mapping of str to str
            Full names of modules, by the names that they are bound to.
        modules : iterable of str
            Full names of all imports of the cell, submodules included.
        world_size : int
            Number of ranks.
        members : mapping, optional
            Full names of modules and what was imported from each, by the names that it is bound to.
        """
        self.version += 1
        self._world_size = world_size
        for name, (module, member) in (members or {}).items():
            self._imports[name], self._members[name] = (module,), member
        every = sorted(modules)
        for name, full in imports.items():
            self._imports[name] = full, *(one for one in every if one.startswith(f"{full}."))

    def knows_of(self, name: str) -> bool:
        """Return True if a name that the notebook lacks was met before; most never were."""
        return name in self._old or name in self._imports or name in self._uses

    def hides_builtin(self, name: str) -> bool:
        """Return True if the nodes have a deleted value under a builtin's name."""
        return name in self._old and hasattr(builtins, name)

    @property
    def imported(self) -> frozenset[str]:
        """Names that new kernels import again when a cell reads them."""
        return frozenset(self._imports)

    def member(self, name: str) -> str:
        """Return an imported name's name in its module; "" for the module itself."""
        return self._members.get(name, "")

    def import_again(self, name: str) -> tuple[tuple[str, ...], frozenset[int]] | None:
        """Return modules that new kernels import for a name, and ranks that do not.

        Return None if the former kernels had not imported the name.
        """
        if name not in self._imports or name not in self._unimported:
            return None
        lost = self._unimported[name]
        everyone = frozenset(range(self._world_size))
        return self._imports[name], frozenset() if lost is None else everyone - lost

    def owners(self, name: str) -> frozenset[int] | None:
        """Return the ranks that keep their own value of a name that others need.

        Return None if no rank needs the notebook's value.
        """
        return self._nodes[name].ranks if name in self._lacking else None

    def supplied(self, name: str) -> None:
        """Record that the ranks that lacked a name have the notebook's value or module."""
        self.version += 1
        self._lacking.discard(name)
        back, mark = self._unimported.pop(name, None), self._nodes.get(name)
        if back and mark is not None and mark.ranks is not None:
            mark.ranks |= back
            mark.ranks = None if len(mark.ranks) >= self._world_size else mark.ranks

    def facts(self, namespace: Mapping[str, Any]) -> list[NameFacts]:
        """Return all names on the nodes, sorted."""
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
        """Return True if the notebook's value must be sent, by the last-writer rule.

        Parameters
        ----------
        name : str
            Name that a cell reads and the notebook has.
        value : Any
            The notebook's value.
        digest : str or None
            Digest of its content now; None if it cannot be pickled.
        again : callable
            Computes the digest once more.

        Returns
        -------
        bool
            True if the nodes' value is missing or differs.
        """
        mark = self._nodes.get(name) or self._sent.get(name)
        return mark is None or mark.differs(value, digest, again)

    def uses(self, name: str) -> frozenset[str]:
        """Return names that the nodes' own function of this name reads."""
        return self._uses.get(name, frozenset())

    def unsent(self, new: Collection[int] = (), world_size: int = 0) -> Ledger:
        """Return a copy with names that the nodes wrote, without those they were sent.

        It is for a rank that may lack the others' values: a new kernel, or the one rank of a call.

        Parameters
        ----------
        new : collection of int
            Ranks with new kernels, which have no names yet.
        world_size : int
            Number of ranks.

        Returns
        -------
        Ledger
            The copy.
        """
        rest = Ledger()
        for name, mark in self._nodes.items():
            mark = copy.copy(mark)
            if new:
                mark.ranks = (mark.ranks or frozenset(range(world_size))).difference(new)
            if mark.gone or mark.ranks is None or mark.ranks:
                rest._nodes[name] = mark
        rest._imports, rest._world_size = dict(self._imports), world_size or self._world_size
        rest._members = dict(self._members)
        rest._unimported = dict(self._unimported)
        for name in self._imports:
            lost = (self._importers(name) or frozenset(range(world_size))).intersection(new)
            if lost and (before := self._unimported.get(name, frozenset())) is not None:
                rest._unimported[name] = before | lost
        rest._uses = {name: uses for name, uses in self._uses.items() if name in rest._nodes}
        rest._lacking = {name for name, mark in rest._nodes.items() if mark.ranks and not mark.gone}
        return rest

    def _importers(self, name: str) -> frozenset[int] | None:
        """Return the ranks that have a module imported by the nodes; None for all."""
        return self._nodes[name].ranks if name in self._nodes else None

    def forget_nodes(self, namespace: Mapping[str, Any]) -> frozenset[str]:
        """Record that the nodes' namespaces are lost, so that everything is sent again.

        Parameters
        ----------
        namespace : mapping
            The notebook's namespace.

        Returns
        -------
        frozenset of str
            Names that only the nodes had.
        """
        self.version += 1
        lost = frozenset(name for name, mark in self._nodes.items() if name not in namespace and not mark.gone)
        # A name that was lost earlier has no importers now.
        self._unimported |= {name: self._importers(name) for name in self._imports if name not in self._unimported}
        self._sent.clear()
        self._nodes.clear()
        self._uses.clear()
        self._lacking.clear()
        self._old.clear()
        self._past.clear()
        return lost
