"""What a cell must be sent: each name that it reads, resolved by the rule of the last writer.

`collect` runs nothing and changes nothing. Its `Capture` is written out by `Capture.manifest`, and
once the nodes have bound it, `Capture.commit` tells the ledger.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import CaptureError, nearest
from .ledger import Ledger
from .modules import imports_of
from .names import CellNames, analyse, is_internal
from .payload import Blob, Packed, fingerprint, pack, write_blob
from .unpicklable import explain


@dataclass(frozen=True)
class Carried:
    """A value of a capture that has code in it, which only the notebook's version of Python can run.

    Parameters
    ----------
    functions : tuple of str
        Whose code it is.
    required : bool
        Whether the cell needs the value; else it is only guessed to be read.
    """

    functions: tuple[str, ...]
    required: bool


@dataclass(frozen=True)
class Binding:
    """One name that the nodes are to bind.

    Parameters
    ----------
    name : str
        The name.
    kind : "value" or "module"
        Whether it is unpickled or imported.
    module : str
        The module's full name, of a module.
    blob : Blob, optional
        The pickle, of a value.
    value : Any
        What the notebook has under the name.
    owners : frozenset of int
        Ranks that do not bind it: they have assigned the name themselves.
    """

    name: str
    kind: Literal["value", "module"]
    module: str = ""
    blob: Blob | None = None
    value: Any = field(default=None, compare=False, repr=False)
    owners: frozenset[int] = frozenset()

    @property
    def digest(self) -> str:
        """Names the content."""
        return f"import {self.module}" if self.blob is None else self.blob.digest


@dataclass(frozen=True)
class Capture:
    """All that a cell must be sent; made by `collect`, dropped when the nodes have it.

    It holds views of the notebook's arrays: write it before another cell runs.

    Parameters
    ----------
    bindings : tuple of Binding
        What to bind: a value comes after those that its functions read.
    imports : tuple of str
        Submodules that must be imported, under no name of their own.
    skipped : tuple of str
        Why names that are only guessed to be read are not sent, one line each.
    names : CellNames
        What the cell reads and writes.
    modules : frozenset of str
        All modules that the code and its values import, wherever they are from.
    carried : mapping of str to Carried
        By name, or by what a call is called, the values that have code in them.
    made : float
        When; seconds since 1970.
    """

    bindings: tuple[Binding, ...] = ()
    imports: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    names: CellNames = field(default_factory=lambda: CellNames(frozenset(), frozenset()))
    modules: frozenset[str] = frozenset()
    carried: Mapping[str, Carried] = field(default_factory=dict, compare=False)
    made: float = field(default_factory=time.time, compare=False)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs of all values, each once."""
        return tuple(dict.fromkeys(one.blob for one in self.bindings if one.blob is not None))

    def manifest(self, folder: Path) -> dict[str, list[Any]]:
        """Write the blobs into `folder`, and say in plain JSON what to bind from where.

        ``sky_jupyter.node.payload.bind`` reads it.
        """
        values, modules = [], [["", name] for name in self.imports]
        for one in self.bindings:
            if one.blob is None:
                modules.append([one.name, one.module])
            else:
                values.append([one.name, str(write_blob(one.blob, folder))])
        owners = [[one.name, sorted(one.owners)] for one in self.bindings if one.owners]
        return {"modules": modules, "values": values, **({"owners": owners} if owners else {})}

    def commit(self, ledger: Ledger) -> None:
        """The nodes have bound all of it."""
        for one in self.bindings:
            if one.owners:
                ledger.supplied(one.name)
            else:
                size = None if one.blob is None else one.blob.size
                ledger.sent(one.name, one.digest, one.value, size=size, when=self.made)


def collect(
    source: str,
    namespace: dict[str, Any],
    ledger: Ledger,
    *,
    exclude: Iterable[str] | Literal["all"] = frozenset(),
    push: Iterable[str] = (),
) -> Capture:
    """Find what a cell must be sent.

    Parameters
    ----------
    source : str
        Python as IPython's ``transform_cell`` leaves it.
    namespace : dict
        The notebook's namespace.
    ledger : Ledger
        The pool's.
    exclude : iterable of str, or "all"
        Names that are not sent though they are read; "all" sends nothing but `push`.
    push : iterable of str
        Names that are sent whatever the ledger says.

    Raises
    ------
    SyntaxError
        When the cell is not Python.
    CaptureError
        When a pushed name does not exist, or a value that the cell reads cannot be pickled.
    """
    cell = analyse(source)
    collector = _Collector(namespace, ledger, exclude, tuple(push))
    collector.attributes |= cell.attributes
    collector.imported |= imports_of(source).names
    collector.add(collector.push, required=True)
    collector.add(cell.reads - cell.weak, required=True)
    collector.add(cell.weak, required=False)
    return collector.capture(cell)


def collect_value(
    value: Any,
    namespace: dict[str, Any],
    ledger: Ledger,
    *,
    label: str = "the function call",
    exclude: Iterable[str] | Literal["all"] = frozenset(),
) -> tuple[Blob, Capture]:
    """Pickle `value`, and find what the notebook's functions in it must be sent to run.

    Parameters
    ----------
    value : Any
        Such as a function with its arguments.
    namespace, ledger, exclude
        As for `collect`.
    label : str
        What error messages call the value.

    Raises
    ------
    CaptureError
        When it, or something that it needs, cannot be pickled.
    """
    try:
        packed = pack(value, namespace)
    except Exception as error:
        raise CaptureError(explain(label, value, namespace, error)) from None
    collector = _Collector(namespace, ledger, exclude, ())
    collector.attributes |= packed.attributes
    collector.imported |= packed.modules
    collector.follow(packed, required=True)
    collector.note_code(label, packed, required=True)
    return packed.blob, collector.capture(CellNames(packed.reads, frozenset()))


class _Collector:
    """Follows names to the names that their functions read."""

    def __init__(
        self, namespace: dict[str, Any], ledger: Ledger, exclude: Iterable[str] | str, push: tuple[str, ...]
    ) -> None:
        self.namespace, self.ledger, self.push = namespace, ledger, push
        self.excluded = None if exclude == "all" else frozenset(exclude)
        self.bindings: dict[str, Binding] = {}
        self.modules: set[str] = set()
        self.attributes: set[str] = set()
        self.imported: set[str] = set()
        self.met: set[str] = set()
        self.carried: dict[str, Carried] = {}
        self.problems: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        for name in push:
            if name not in namespace:
                raise CaptureError(
                    f"{name!r} cannot be pushed: the notebook has no such name"
                    + nearest(name, (known for known in namespace if not known.startswith("_")))
                )

    def add(self, names: Iterable[str], *, required: bool) -> None:
        for name in sorted(names):
            if name not in self.met and not self.left_alone(name):
                self.met.add(name)
                self.resolve(name, required)

    def left_alone(self, name: str) -> bool:
        if name in self.push:
            return False
        if is_internal(name) or self.excluded is None or name in self.excluded:
            return True
        value = self.namespace.get(name)
        return name == "open" and str(getattr(value, "__module__", "")).startswith("IPython")

    def resolve(self, name: str, required: bool) -> None:
        if name not in self.namespace:
            self.add(self.ledger.uses(name), required=required)
            return
        value = self.namespace[name]
        if isinstance(value, types.ModuleType) and value.__name__ in sys.modules:
            self.modules.add(value.__name__)
            binding = Binding(name, "module", value.__name__, value=value)
            if self.wanted(binding, lambda: binding.digest):
                self.bindings[name] = binding
            elif owners := self.ledger.owners(name):
                self.bindings[name] = replace(binding, owners=owners)
            return
        try:
            packed = pack(value, self.namespace)
        except Exception as error:
            self.resolve_unpicklable(name, value, error, required)
            return
        self.imported |= packed.modules
        binding = Binding(name, "value", blob=packed.blob, value=value)
        if self.wanted(binding, lambda: fingerprint(value, self.namespace)):
            self.attributes |= packed.attributes
            # What a value's functions read is bound before the value, whose unpickling may call them.
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
        """Add what the functions in a value read."""
        self.add(packed.reads, required=required)
        self.add(packed.guesses, required=False)

    def note_code(self, label: str, packed: Packed, required: bool) -> None:
        """Note of what is sent whether there is code in it."""
        if packed.carried:
            self.carried[label] = Carried(packed.carried, required)

    def resolve_unpicklable(self, name: str, value: Any, error: Exception, required: bool) -> None:
        if name not in self.push and not self.ledger.must_send(name, value, None, lambda: None):
            self.add(self.ledger.uses(name), required=required)
            return
        (self.problems if required else self.skipped)[name] = explain(name, value, self.namespace, error)

    def wanted(self, binding: Binding, again: Callable[[], str | None]) -> bool:
        push = binding.name in self.push
        return push or self.ledger.must_send(binding.name, binding.value, binding.digest, again)

    def capture(self, cell: CellNames) -> Capture:
        if self.problems:
            names = ",".join(self.problems)
            lines = "\n".join(self.problems.values())
            raise CaptureError(f"{lines}\nleave it out with --no-capture {names}, or make it inside the cell")
        inner = self.submodules()
        modules = frozenset({*self.imported, *self.modules, *inner})
        bindings, skipped = tuple(self.bindings.values()), tuple(self.skipped.values())
        return Capture(bindings, inner, skipped, cell, modules, self.carried)

    def submodules(self) -> tuple[str, ...]:
        """Loaded submodules that the code may reach by attributes, such as `xml.dom` from `xml`."""
        found = []
        for name in sorted(sys.modules) if self.modules else ():
            for module in self.modules:
                if name.startswith(f"{module}.") and self.attributes.issuperset(name[len(module) + 1 :].split(".")):
                    found.append(name)
                    break
        return tuple(found)
