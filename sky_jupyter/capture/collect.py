"""Values that must be sent for a cell, by the last-writer rule.

`collect` runs nothing and changes nothing. `Capture.manifest` lists what to bind; after the nodes have bound it,
`Capture.commit` updates the ledger.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import CaptureError, SpecError
from ..node.runtime.shard import common_length, part, uneven_text
from ..node.serialization import diagnose_pickling
from ..node.serialization.cell_sources import Source, sources_of
from ..util.text import nearest
from . import aliased_memory
from .blobs import Blob, LastPickler, Packed, Tell, fingerprint, pack, untold, write_blob
from .cell_names import CellNames, analyse, is_internal
from .import_graph import Imports, imports_of
from .ledger import Ledger
from .shared_references import PLAIN, NameGroup, ObjectTrace, Ties, Unit, refer, shared

_EVEN = "leave some out here, or leave --shard out and "
Manifest = dict[str, list[Any]]
"""Bindings with their files, for `bind` of ``sky_jupyter.node.serialization.pickling``."""


@dataclass(frozen=True)
class Carried:
    """Value with code in it, which only the notebook's version of Python can run.

    Parameters
    ----------
    functions : tuple of str
        Names of the functions.
    required : bool
        True if the cell needs the value; False if reading it is a guess.
    """

    functions: tuple[str, ...]
    required: bool


@dataclass(frozen=True)
class Binding:
    """Name that the nodes must bind.

    Parameters
    ----------
    name : str
        The name.
    kind : "value" or "module"
        Unpickle a value, or import a module.
    module : str
        Full name of a module.
    member : str
        Name in the module; "" for the module itself.
    blob : Blob, optional
        Pickle of a value.
    value : Any
        The notebook's object.
    owners : frozenset of int
        Ranks that keep their own value: they have assigned the name themselves.
    ranks : int
        Number of parts of a sharded value; 0 if it is sent whole.
    """

    name: str
    kind: Literal["value", "module"]
    module: str = ""
    member: str = ""
    blob: Blob | None = None
    value: Any = field(default=None, compare=False, repr=False)
    owners: frozenset[int] = frozenset()
    ranks: int = 0

    @property
    def digest(self) -> str:
        """Digest of the content."""
        if self.blob is None:
            return f"import {self.module} {self.member}".rstrip()
        return f"{self.ranks} parts of {self.blob.digest}" if self.ranks else self.blob.digest


@dataclass(frozen=True)
class Capture:
    """Everything that must be sent for a cell; made by `collect`.

    It has views of the notebook's arrays: write it before another cell runs.

    Parameters
    ----------
    bindings : tuple of Binding
        Names to bind; a value comes after those that its functions read.
    imports : tuple of str
        Submodules that must be imported without a name of their own.
    skipped : tuple of str
        Reasons why names that were only guessed are not sent, one line each.
    names : CellNames
        Names that the cell reads and writes.
    modules : frozenset of str
        All modules that the code and its values import.
    carried : mapping of str to Carried
        Values with code in them, by name or by the label of a call.
    notes : tuple of str
        Warnings for the user.
    sources : tuple of Source
        Cells that define code in the values.
    namespace : dict
        The notebook's namespace.
    made : float
        Time of creation, in seconds since 1970.
    groups : tuple of NameGroup
        Bindings that share objects, and are sent together.
    units : mapping of str to Unit
        By name, the objects that the nodes have with it after binding.
    call : Blob, optional
        For a call whose blob refers to objects on the nodes: the blob with copies of them.
    met : frozenset of str
        All names that were looked at.
    bound : tuple of (str, str, str)
        Names that the cell's imports may bind; see `Imports`.
    """

    bindings: tuple[Binding, ...] = ()
    imports: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    names: CellNames = field(default_factory=lambda: CellNames(frozenset(), frozenset()))
    modules: frozenset[str] = frozenset()
    carried: Mapping[str, Carried] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = field(default=(), compare=False, repr=False)
    namespace: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    made: float = field(default_factory=time.time, compare=False)
    groups: tuple[NameGroup, ...] = ()
    units: Mapping[str, Unit] = field(default_factory=dict, compare=False, repr=False)
    call: Blob | None = None
    met: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    bound: tuple[tuple[str, str, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Blobs of all values that are sent whole, without duplicates."""
        groups = self._groups()
        alone = {one.name for one in self.bindings}.difference(*(one.names for one in groups if not one.refers))
        blobs = [one.blob for one in self.bindings if one.blob is not None and not one.ranks and one.name in alone]
        blobs += [one.blob for one in groups]
        return tuple(dict.fromkeys(blobs if self.call is None else [*blobs, self.call]))

    def _groups(self) -> list[NameGroup]:
        """Return the groups all of whose names are to be bound."""
        names = {one.name for one in self.bindings}
        return [one for one in self.groups if names.issuperset(one.names)]

    def without_bindings(self) -> Capture:
        """Return a copy without references to the notebook's objects."""
        return replace(self, bindings=(), groups=(), units={}, call=None)

    @property
    def cut(self) -> tuple[Binding, ...]:
        """Bindings of sharded values: each rank is sent its part."""
        return tuple(one for one in self.bindings if one.ranks)

    def part(self, one: Binding, rank: int, tell: Tell = untold) -> Blob:
        """Return a rank's part of a sharded value; it is made on each call."""
        return pack(part(one.value, rank, one.ranks), self.namespace, tell).blob

    def manifest(self, place: Callable[[Blob], str], parts: Mapping[str, Mapping[int, str]] | None = None) -> Manifest:
        """Return the bindings as JSON, for ``node.serialization.pickling.bind``.

        Parameters
        ----------
        place : callable
            Returns the path of a blob.
        parts : mapping, optional
            Paths of each rank's part of the sharded values.

        Returns
        -------
        Manifest
            The bindings, with the paths of their files.
        """
        modules = [["", name] for name in self.imports]
        modules += [[one.name, one.module] for one in self.bindings if one.blob is None and not one.member]
        said: Manifest = {"modules": modules, "values": self._values(place)}
        if members := [[one.name, one.module, one.member] for one in self.bindings if one.member]:
            said["members"] = members
        if self.bound:
            said["bound"] = [list(one) for one in self.bound]
        if self.call is not None:
            said["call"] = [place(self.call)]
        if owners := [[one.name, sorted(one.owners)] for one in self.bindings if one.owners]:
            said["owners"] = owners
        if self.sources:
            said["sources"] = [list(one) for one in self.sources]
        if self.cut:
            paths = parts or {}
            said["parts"] = [[one.name, [list(pair) for pair in paths[one.name].items()]] for one in self.cut]
        return said

    def _values(self, place: Callable[[Blob], str]) -> list[Any]:
        values: list[Any] = []
        blobs = {one.name: one.blob for one in self.bindings if one.blob is not None and not one.ranks}
        groups = {name: one for one in self._groups() for name in one.names}
        left = {name: set(one.names) for name, one in groups.items()}
        for name, blob in blobs.items():
            group = groups.get(name)
            if group is None:
                unit = self.units.get(name)
                values.append([name, place(blob), *([] if unit is None else [unit.token])])
                continue
            for other in group.names:
                left[other].discard(name)
            if not left[name]:
                plain = {other: place(blobs[other]) for other in group.names} if group.refers else {}
                values.append([list(group.names), place(group.blob), group.unit, plain])
        return values

    def write(self, folder: Path) -> Manifest:
        """Write the blobs of unsharded values into a folder; return the manifest."""
        return self.manifest(lambda blob: str(write_blob(blob, folder)))

    def commit(self, ledger: Ledger) -> None:
        """Record in the ledger that the nodes have bound everything."""
        if ledger.has_replaced:
            ledger.settle(self.namespace)
        for one in self.bindings:
            if one.owners:
                ledger.supplied(one.name)
            else:
                size = None if one.blob is None else one.blob.size
                unit = self.units.get(one.name)
                ledger.sent(one.name, one.digest, one.value, size=size, when=self.made, parts=one.ranks, unit=unit)


def collect(
    source: str,
    namespace: dict[str, Any],
    ledger: Ledger,
    *,
    exclude: Iterable[str] | Literal["all"] = frozenset(),
    push: Iterable[str] = (),
    shard: Iterable[str] = (),
    ranks: int = 1,
    tell: Tell = untold,
) -> Capture:
    """Return everything that must be sent for a cell.

    Parameters
    ----------
    source : str
        Python, the output of IPython's ``transform_cell``.
    namespace : dict
        The notebook's namespace.
    ledger : Ledger
        The pool's ledger.
    exclude : iterable of str, or "all"
        Names that are not sent although they are read; "all" sends only `push`.
    push : iterable of str
        Names that are sent whatever the ledger says.
    shard : iterable of str
        Names whose values are sharded: each rank is sent only its part.
    ranks : int
        Number of parts: the pool's ranks.
    tell : callable
        Called with the bytes of large values that were just read.

    Returns
    -------
    Capture
        Bindings, warnings and sources.

    Raises
    ------
    SyntaxError
        When the cell is not Python.
    CaptureError
        When a pushed name does not exist, a name cannot be sharded, or a value that the cell reads cannot be pickled.
    """
    cell, imports = analyse(source), imports_of(source) if "import" in source else Imports()
    collector = _Collector(namespace, ledger, exclude, tuple(push), tell)
    collector.add_parts(tuple(shard), ranks, cell)
    collector.attributes |= cell.attributes
    collector.imported |= imports.names
    collector.add(collector.push, required=True)
    collector.add(cell.reads - cell.weak, required=True)
    collector.add(cell.weak, required=False)
    return replace(collector.capture(cell), bound=imports.bound)


def collect_value(
    value: Any,
    namespace: dict[str, Any],
    ledger: Ledger,
    *,
    label: str = "the function call",
    exclude: Iterable[str] | Literal["all"] = frozenset(),
    inline: int = 0,
) -> tuple[Blob, Capture]:
    """Pickle a value; return it with what the notebook's functions in it need.

    Parameters
    ----------
    value : Any
        The value, such as a function with its arguments.
    namespace : dict
        The notebook's namespace.
    ledger : Ledger
        The pool's ledger.
    label : str
        Name of the value in error messages.
    exclude : iterable of str, or "all"
        Names that are not sent; see `collect`.
    inline : int
        Buffers of up to this many bytes in total stay in the pickle.

    Returns
    -------
    (Blob, Capture)
        The value, and what its functions read.

    Raises
    ------
    CaptureError
        When the value, or something that it needs, cannot be pickled.
    """
    try:
        packed = pack(value, namespace, inline=inline)
    except Exception as error:
        why = diagnose_pickling.explain(label, value, namespace, error, LastPickler)
        raise CaptureError(why) from None
    collector = _Collector(namespace, ledger, exclude, ())
    collector.attributes |= packed.attributes
    collector.imported |= packed.modules
    collector.follow(packed, required=True)
    collector.note_code(label, packed, required=True)
    capture = collector.capture(CellNames(packed.reads, frozenset()))
    blob = collector.refer(packed, value)
    return blob, capture if blob is packed.blob else replace(capture, call=packed.blob)


class _Collector:
    """Follows names to values, and values to the names that their functions read."""

    def __init__(
        self,
        namespace: dict[str, Any],
        ledger: Ledger,
        exclude: Iterable[str] | str,
        push: tuple[str, ...],
        tell: Tell = untold,
    ) -> None:
        self.namespace, self.ledger, self.push, self.tell = namespace, ledger, push, tell
        self.ranks: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()
        self.excluded = None if exclude == "all" else frozenset(exclude)
        self.bindings: dict[str, Binding] = {}
        self.modules: set[str] = set()
        self.attributes: set[str] = set()
        self.imported: set[str] = set()
        self.met: set[str] = set()
        self.carried: dict[str, Carried] = {}
        self.files: set[str] = set()
        self.imports: set[str] = set()
        self.problems: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        # Values that were pickled whole, sent or not: others may share objects with them. The names in `parted_before`
        # are sent whatever the ledger says.
        self.packs: dict[str, Packed] = {}
        self.traces: dict[str, ObjectTrace] = {}
        self.parted_before: set[str] = set()
        self.ties: Ties | None = None
        for name in push:
            self.must_have(name, "pushed")

    def must_have(self, name: str, done: str) -> None:
        if name not in self.namespace:
            raise CaptureError(
                f"{name!r} cannot be {done}: the notebook has no such name"
                + nearest(name, (known for known in self.namespace if not known.startswith("_")))
            )

    def add_parts(self, names: tuple[str, ...], ranks: int, cell: CellNames) -> None:
        """Add the values to shard; raise CaptureError for one that cannot be."""
        for name in names:
            self.must_have(name, "sharded")
            if name in cell.writes and name not in cell.reads:
                raise CaptureError(
                    f"{name!r} cannot be sharded: the cell assigns it without reading it; leave it out of --shard"
                )
        if not names:
            return
        arrays = {name: self.namespace[name] for name in names}
        try:
            length = common_length(arrays)
            # The shortest parts possible: this fails if the value cannot be indexed.
            for value in arrays.values():
                part(value, length, length + 1)
        except SpecError as error:
            raise CaptureError(f"--shard {','.join(names)}: {error}") from None
        self.ranks = dict.fromkeys(names, ranks)
        self.notes = tuple(filter(None, [uneven_text(length, ranks, f"--shard {','.join(names)}", _EVEN)]))
        self.add(names, required=True)

    def add(self, names: Iterable[str], *, required: bool) -> None:
        for name in sorted(names):
            if name not in self.met and not self.left_alone(name):
                self.met.add(name)
                self.resolve(name, required)

    def left_alone(self, name: str) -> bool:
        if name in self.push or name in self.ranks:
            return False
        return self.excluded is None or name in self.excluded or is_internal(name, self.namespace)

    def resolve(self, name: str, required: bool) -> None:
        if name in self.namespace:
            value = self.namespace[name]
        elif not self.ledger.knows_of(name):
            return
        elif self.ledger.hides_builtin(name):
            value = getattr(builtins, name)
        else:
            if (again := self.ledger.import_again(name)) is not None:
                (module, *inner), others = again
                self.imports.update(inner)
                self.imported.add(module)
                self.bindings[name] = Binding(name, "module", module, self.ledger.member(name), owners=others)
            self.add(self.ledger.uses(name), required=required)
            return
        ranks = self.ranks.get(name, 0)
        if isinstance(value, types.ModuleType) and value.__name__ in sys.modules:
            self.modules.add(value.__name__)
            binding = Binding(name, "module", value.__name__, value=value)
            if self.wanted(binding, lambda: binding.digest):
                self.bindings[name] = binding
            elif owners := self.ledger.owners(name):
                self.bindings[name] = replace(binding, owners=owners)
            return
        try:
            packed = pack(value, self.namespace, self.tell)
        except Exception as error:
            self.resolve_unpicklable(name, value, error, required)
            return
        if not ranks and type(value) not in PLAIN:
            self.packs[name] = packed
        self.imported |= packed.modules
        binding = Binding(name, "value", blob=packed.blob, value=value, ranks=ranks)
        if self.wanted(binding, lambda: _again(binding, self.namespace)):
            self.attributes |= packed.attributes
            # Names that a value's functions read are bound before it: unpickling may call them.
            self.follow(packed, required)
            self.bindings[name] = binding
            self.note_code(name, packed, required)
        elif name in self.ledger.nodes_own:
            self.add(self.ledger.uses(name), required=required)
            if owners := self.ledger.owners(name):
                self.attributes |= packed.attributes
                self.follow(packed, required=False)
                self.bindings[name] = replace(binding, owners=owners)
                self.note_code(name, packed, required)
        else:
            self.follow(packed, required)

    def follow(self, packed: Packed, required: bool) -> None:
        """Add the names that the functions in a value read."""
        self.add(packed.reads, required=required)
        self.add(packed.guesses, required=False)

    def note_code(self, label: str, packed: Packed, required: bool) -> None:
        """Record the source files of a value's code, and its functions."""
        self.files |= packed.files
        if packed.carried:
            self.carried[label] = Carried(packed.carried, required)

    def resolve_unpicklable(self, name: str, value: Any, error: Exception, required: bool) -> None:
        if name not in self.push and not self.ledger.must_send(name, value, None, lambda: None):
            self.add(self.ledger.uses(name), required=required)
            return
        why = diagnose_pickling.explain(name, value, self.namespace, error, LastPickler)
        (self.problems if required else self.skipped)[name] = why

    def wanted(self, binding: Binding, again: Callable[[], str | None]) -> bool:
        # Sharding a name means the notebook's value, not what the ranks have assigned.
        push = binding.name in self.push or (binding.ranks and binding.name in self.ledger.nodes_own)
        push = push or binding.name in self.parted_before
        return bool(push) or self.ledger.must_send(binding.name, binding.value, binding.digest, again)

    def refused(self) -> CaptureError:
        """Return the error that lists the unpicklable values, with advice."""
        names = ",".join(self.problems)
        lines = "\n".join(self.problems.values())
        return CaptureError(f"{lines}\nleave it out with --no-capture {names}, or make it inside the cell")

    def capture(self, cell: CellNames) -> Capture:
        if self.problems:
            raise self.refused()
        ties = self.tie()
        inner = tuple(sorted(self.imports.union(self.submodules())))
        modules = frozenset({*self.imported, *self.modules, *inner})
        bindings, skipped = tuple(self.bindings.values()), tuple(self.skipped.values())
        notes = self.notes if any(one.ranks for one in bindings) else ()
        sources = sources_of(self.files, self.namespace) if self.files else ()
        notes += tuple(_parting(*pair) for pair in ties.parted)
        notes += tuple(_untied(*pair) for pair in ties.untied)
        notes += self.of_memory()
        found = Capture(bindings, inner, skipped, cell, modules, self.carried, notes, sources, self.namespace)
        return replace(found, groups=tuple(ties.groups), units=ties.units, met=frozenset(self.met))

    def of_memory(self) -> tuple[str, ...]:
        """Return warnings about memory that values will not share on the nodes."""
        sent = self.sent()
        notes = tuple(aliased_memory.apart(self.packs, sent)) if "torch" in sys.modules else ()
        if cut := {name: self.bindings[name].value for name in self.ranks if name in self.bindings}:
            notes += tuple(aliased_memory.cut(cut, {name: self.trace(name).ids for name in sent}))
        return notes

    # -- what shares objects -----------------------------------------------------------------------

    def tie(self) -> Ties:
        """Group sent values that share objects with each other or with nodes' values."""
        while self.add_touched() or self.add_joined():
            pass
        if self.problems:
            raise self.refused()
        sent = {name: self.trace(name) for name in self.sent()}
        kept = {}
        if sent:
            for name in self.packs.keys() - sent.keys():
                kept[name] = self.trace(name), self.ledger.unit(name) or Unit("", {})
            if self.ledger.has_replaced:
                kept.update(self.replaced(sent))
        values = {name: self.bindings[name].value for name in sent}
        digests = {name: self.packs[name].blob.digest for name in sent}
        self.ties = Ties(self.namespace, values, digests, sent, kept, self.ledger.nodes_own)
        if sent:
            self.ties.tie()
        return self.ties

    def replaced(self, sent: Mapping[str, ObjectTrace]) -> Iterator[tuple[str, tuple[ObjectTrace, Unit]]]:
        """Yield replaced values, still on the nodes, that share objects with sent ones."""
        ids = set().union(*(trace.ids for trace in sent.values()))
        for name, value, digest, unit in self.ledger.replaced(ids):
            with contextlib.suppress(Exception):
                packed = pack(value, self.namespace)
                if packed.blob.digest == digest:
                    yield f"the former {name}", (ObjectTrace(packed), unit)

    def sent(self) -> list[str]:
        """Return the names of values that are sent whole, in order."""
        return [name for name in self.bindings if name in self.packs]

    def trace(self, name: str) -> ObjectTrace:
        """Return the objects in a value."""
        if name not in self.traces:
            self.traces[name] = ObjectTrace(self.packs[name])
        return self.traces[name]

    def add_touched(self) -> bool:
        """Add changed values on the nodes that share objects with sent ones."""
        ids = set().union(*(self.trace(name).ids for name in self.sent()))
        found = [name for name in self.ledger.touched(ids, self.namespace) if name not in self.met] if ids else []
        self.add(found, required=False)
        return bool(self.met.intersection(found))

    def add_joined(self) -> bool:
        """Add unchanged values that began to share objects after they were sent.

        Views of an array that was changed outside of them are added too.
        """
        if len(self.packs) < 2:
            return False
        common = shared({name: self.trace(name) for name in self.packs})
        sent = set().union(*(self.trace(name).ids for name in self.sent()))
        found = set()
        for name in self.packs.keys() - self.bindings.keys() - self.ledger.nodes_own:
            unit, trace = self.ledger.unit(name), self.trace(name)
            if unit is None:
                continue
            joined = not all(unit.knows(key, trace.object(key)) for key in common & trace.objects.keys())
            if joined or any(unit.outdated(key, trace, self.namespace) for key in trace.roots.keys() & sent):
                found.add(name)
        self.parted_before |= found
        for name in sorted(found):
            self.resolve(name, False)
        return bool(found)

    def refer(self, packed: Packed, value: Any) -> Blob:
        """Return the blob of a call, which shares objects with names that it reads."""
        ties = self.ties
        if ties is None or not self.packs:
            return packed.blob
        units = {name: (self.trace(name), unit) for name, unit in ties.units.items()}
        return refer(packed, value, {**ties.kept, **units})

    def submodules(self) -> tuple[str, ...]:
        """Return loaded submodules that the code may reach as attributes (`xml.dom`)."""
        found = []
        for name in sorted(sys.modules) if self.modules else ():
            for module in self.modules:
                if name.startswith(f"{module}.") and self.attributes.issuperset(name[len(module) + 1 :].split(".")):
                    found.append(name)
                    break
        return tuple(found)


def _parting(name: str, other: str) -> str:
    """Return a warning about two names that will not share an object on the nodes."""
    return (
        f"{name} and {other} share an object in the notebook, and do not on the nodes: {name} is sent now, and {other} "
        f"is what the nodes have. Assign both anew in the notebook to have them share it there"
    )


def _untied(name: str, other: str) -> str:
    """Return a warning about Keras models that will not share layers on the nodes."""
    models = f"{name} and {other} share" if name != other else f"models in {name} share"
    return (
        f"{models} Keras layers or weights in the notebook, and do not on the nodes: the configuration that Keras has "
        f"of a model there does not name them. Make both inside the cell, or have both read by the same cell"
    )


def _again(binding: Binding, namespace: dict[str, Any]) -> str | None:
    """Return a binding's digest, computed once more."""
    digest = fingerprint(binding.value, namespace)
    return f"{binding.ranks} parts of {digest}" if binding.ranks and digest is not None else digest
