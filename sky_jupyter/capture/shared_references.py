"""Names that share objects: they are sent together, and referred to later.

`ObjectTrace` has the objects in a value's pickle, `Unit` the objects that the nodes were sent in one pickle. `Ties`,
made for one transfer, groups the names that share an object. A name that was sent before and has not changed is not
sent again: the nodes may have changed their value. A new value that shares an object with such a name refers to that
object by its handle.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..node.serialization.arrays import root_of
from ..node.serialization.keras_models import Place
from ..node.serialization.received_objects import Handle, may_change
from ..util.garbage import collections_paused
from .blobs import Blob, NotebookPickler, Packed, fingerprint, pack
from .keras_layers import Models

PLAIN = frozenset([str, bytes, int, float, complex, bool, type(None)])
"""Types of values whose identity does not matter."""
MOST_OBJECTS = 100_000
"""With more mutable objects, a value shares them only with values sent together with it."""


class ObjectTrace:
    """Objects in a pickle whose identity matters."""

    def __init__(self, packed: Packed) -> None:
        assert packed.pickler is not None
        self.pickler = packed.pickler
        value = self.pickler.value
        self.objects: dict[int, tuple[int, Any]] = {}
        memo: dict[int, tuple[int, Any]] = {}
        if type(self.pickler) is NotebookPickler and _has_plain_items(value):
            # The memo would be a copy of all items.
            self.objects[id(value)] = 0, value
        else:
            with collections_paused():
                memo = self.pickler.memo.copy()
            self.objects |= {key: one for key, one in memo.items() if type(one[1]) is not str and may_change(one[1])}
        # Parts of Keras models are in the models' archives: their places, by id.
        self.places: dict[int, Place] = {}
        for model in self.pickler.models.met.values():
            for key, (place, one) in self.pickler.models.parts(model).items():
                if key not in self.objects and id(model) in memo:
                    self.objects[key], self.places[key] = (memo[id(model)][0], one), place
        self.roots: dict[int, list[Any]] = {}
        for array in self.pickler.arrays:
            root = root_of(array)
            if id(array) in self.objects:
                self.roots.setdefault(id(root), [root]).append(array)
        # Arrays that share memory count as the array that owns it.
        self.ids = self.objects.keys() | self.roots.keys()

    def object(self, key: int) -> Any:
        """Return the object of an id."""
        return self.objects[key][1] if key in self.objects else self.roots[key][0]

    @functools.cached_property
    def owned(self) -> set[int]:
        """Ids of objects in classes pickled by value: instances share them anyway."""
        found: set[int] = set()
        for one in list(self.pickler.classes.values()):
            with contextlib.suppress(Exception):
                found |= ObjectTrace(pack(one, self.pickler.namespace)).ids
        return found

    def unit(self, token: str) -> Unit | None:
        """Return the objects to refer to once sent; None if there are none or too many."""
        if len(self.objects) > MOST_OBJECTS:
            return None
        found: dict[int, tuple[Handle, Callable[[], Any]]] = {}
        with collections_paused():
            for key, (number, obj) in self.objects.items():
                place = self.places.get(key)
                found[key] = (token, number) if place is None else (token, number, place), _reference(obj)
        states = set()
        for _, obj in self.objects.values():
            if type(obj) is dict or type(obj) is list:
                continue
            # An attribute dictionary that another object takes over cannot be referred to by itself.
            if type(own := getattr(obj, "__dict__", None)) is dict and id(own) in found:
                del found[id(own)]
                states.add(id(own))
        roots = frozenset(self.roots.keys() - found.keys())
        if not found:
            return None
        return Unit(token, found, roots, frozenset(states))


def _has_plain_items(value: Any) -> bool:
    """Return True if a list, set or dictionary has only numbers and strings."""
    kind = type(value)
    if kind is dict:
        return PLAIN.issuperset(map(type, value)) and PLAIN.issuperset(map(type, value.values()))
    return (kind is list or kind is set) and PLAIN.issuperset(map(type, value))


def _reference(obj: Any) -> Callable[[], Any]:
    if type(obj) is dict or type(obj) is list:
        return lambda: obj
    try:
        return weakref.ref(obj)
    except TypeError:  # Its type has no weak references. An id alone would not be enough: ids are reused.
        return lambda: obj


def _is_weak(obj: Any) -> bool:
    return isinstance(_reference(obj), weakref.ref)


@dataclass(frozen=True, eq=False)
class Unit:
    """Objects that the nodes were sent in one pickle.

    Parameters
    ----------
    token : str
        Name of the unit on the nodes.
    objects : dict
        Handle and object, by the object's id here.
    roots : frozenset of int
        Ids of arrays that own the memory of views, and were not sent themselves.
    states : frozenset of int
        Ids of attribute dictionaries, which cannot be shared by themselves.
    contents : dict of int to str
        Digests of arrays that own the memory of views, by id. A view's own digest does not cover the rest of its array.
    """

    token: str
    objects: dict[int, tuple[Handle, Callable[[], Any]]]
    roots: frozenset[int] = frozenset()
    states: frozenset[int] = frozenset()
    contents: dict[int, str | None] = field(default_factory=dict)

    def touches(self, ids: Collection[int]) -> bool:
        """Return True if one of these ids may be in it; ids may be reused."""
        return not (self.objects.keys().isdisjoint(ids) and self.roots.isdisjoint(ids))

    def knows(self, key: int, obj: Any) -> bool:
        """Return True if it had this object when it was sent."""
        return key in self.states or self.handle(key, obj) is not None

    def handle(self, key: int, obj: Any) -> Handle | None:
        """Return the handle of exactly this object; None if there is none."""
        handle, kept = self.objects.get(key, (None, None))
        return handle if kept is not None and kept() is obj else None

    def outdated(self, key: int, trace: ObjectTrace, namespace: dict[str, Any]) -> bool:
        """Return True if an array was changed outside of the trace's views of it."""
        if key in trace.objects or key not in trace.roots or key not in self.objects:
            return False
        digest = fingerprint(trace.object(key), namespace)
        return digest is None or digest != self.contents.get(key)


@dataclass(frozen=True)
class NameGroup:
    """Names that are sent together.

    Parameters
    ----------
    names : tuple of str
        The names.
    blob : Blob
        A dict of their values.
    unit : str
        Name of the unit on the nodes.
    refers : bool
        True if it refers to objects on the nodes: if one of them is gone, each name is bound from its own pickle.
    """

    names: tuple[str, ...]
    blob: Blob
    unit: str
    refers: bool = False


@dataclass
class Ties:
    """Groups of names in one transfer; `tie` computes them.

    Parameters
    ----------
    namespace : dict
        The notebook's namespace.
    values : dict
        Sent values, by name.
    digests : dict of str to str
        Digests of their contents.
    traces : dict of str to ObjectTrace
        Their objects.
    kept : dict of str to (ObjectTrace, Unit)
        Unchanged values on the nodes that may share an object.
    own : collection of str
        Those of them that the nodes have assigned since.
    groups : list of NameGroup
        Result: names that must be sent together.
    units : dict of str to Unit
        Result: by name, the objects that the nodes have with it once sent.
    parted : list of (str, str)
        Result: names that share an object here and will not there.
    untied : list of (str, str)
        Result: names of Keras models that will not share layers there; equal if one name holds both models.
    """

    namespace: dict[str, Any]
    values: dict[str, Any]
    digests: dict[str, str]
    traces: dict[str, ObjectTrace]
    kept: dict[str, tuple[ObjectTrace, Unit]]
    own: Collection[str] = ()
    groups: list[NameGroup] = field(default_factory=list)
    units: dict[str, Unit] = field(default_factory=dict)
    parted: list[tuple[str, str]] = field(default_factory=list)
    untied: list[tuple[str, str]] = field(default_factory=list)
    _roots: set[int] = field(default_factory=set)
    _handles: dict[int, Handle] = field(default_factory=dict)

    def tie(self) -> None:
        """Find values that share objects, and pickle them together."""
        self._roots = overlapping([*self.traces.values(), *(trace for trace, _ in self.kept.values())])
        self._refer()
        parent = {name: name for name in self.traces}

        def top(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        first: dict[int, str] = {}
        common = shared(self.traces, self._roots)
        for name, trace in self.traces.items():
            for key in common & trace.ids:
                if key not in self._handles and (other := first.setdefault(key, name)) != name:
                    parent[top(name)] = top(other)
        together: dict[str, list[str]] = {}
        for name in self.traces:
            together.setdefault(top(name), []).append(name)
        for names in together.values():
            self._send(names)

    def _refer(self) -> None:
        """Find objects of the sent values that the nodes have."""
        for name, trace in self.traces.items():
            for other, (held, unit) in self.kept.items():
                common = trace.ids & held.ids
                if not common:
                    continue
                common -= trace.owned
                for key in common:
                    if key in trace.roots and key not in trace.objects and key not in self._roots:
                        continue
                    handle = unit.handle(key, held.object(key))
                    if handle is not None and unit.outdated(key, held, self.namespace):
                        parts = True
                    elif handle is not None:
                        self._handles.setdefault(key, handle)
                        # An object without weak references was sent with the name's former value.
                        parts = other in self.own and not _is_weak(held.object(key))
                    else:
                        parts = key not in unit.states
                    if parts and (name, other) not in self.parted:
                        self.parted.append((name, other))

    def _send(self, names: list[str]) -> None:
        ids = set().union(*(self.traces[name].ids for name in names))
        handles = {key: handle for key, handle in self._handles.items() if key in ids}
        roots = self._roots & ids
        if len(names) == 1 and not handles and not roots:
            unit = self.traces[names[0]].unit(self._token(names, self.digests[names[0]]))
            if unit is not None:
                self.units[names[0]] = unit
            self._note_untied(names, self.traces[names[0]].pickler.models)
            return
        try:
            packed = pack({name: self.values[name] for name in names}, self.namespace, handles=handles, roots=roots)
        except Exception:
            # Each value could be pickled alone: they are sent apart.
            self.parted += [(names[0], other) for other in names[1:]]
            return
        token = self._token(names, packed.blob.digest)
        self.groups.append(NameGroup(tuple(names), packed.blob, token, bool(handles)))
        trace = ObjectTrace(packed)
        self._note_untied(names, trace.pickler.models)
        unit = trace.unit(token)
        objects = dict(unit.objects) if unit is not None else {}
        for key, handle in handles.items():
            objects[key] = handle, _reference(self._object(key, names))
        if objects:
            more = (unit.roots, unit.states) if unit is not None else (frozenset[int](), frozenset[int]())
            arrays = {key: self._object(key, names) for key in roots & objects.keys()}
            contents = {key: fingerprint(array, self.namespace) for key, array in arrays.items()}
            self.units.update(dict.fromkeys(names, Unit(token, objects, *more, contents)))

    def _token(self, names: Collection[str], digest: str) -> str:
        """Return a unit's name: the same if the same objects are sent to another rank.

        Other objects with equal content get another name, as both units may be referred to.
        """
        which = (str(id(self.values[name])) for name in names)
        return hashlib.blake2b(" ".join([digest, *names, *which]).encode(), digest_size=8).hexdigest()

    def _object(self, key: int, names: Iterable[str]) -> Any:
        return next(self.traces[name].object(key) for name in names if key in self.traces[name].ids)

    def _note_untied(self, names: list[str], models: Models) -> None:
        """Record models that should share others' layers and got layers of their own."""
        held = {name: trace for name, (trace, _) in self.kept.items()} | {name: self.traces[name] for name in names}
        for model, part in models.untied:
            name = next((name for name in names if id(model) in self.traces[name].ids), names[0])
            other = next((other for other in held if other != name and id(part) in held[other].ids), name)
            if (name, other) not in self.untied:
                self.untied.append((name, other))


def shared(traces: Mapping[str, ObjectTrace], roots: Collection[int] = ()) -> set[int]:
    """Return the ids of objects that several values share, not only their classes."""
    met: set[int] = set()
    common: set[int] = set()
    for trace in traces.values():
        ids = trace.objects.keys() | (trace.roots.keys() & roots)
        common |= met & ids
        met |= ids
    if common:
        common -= set().union(*(trace.owned for trace in traces.values() if trace.ids & common))
    return common


def overlapping(traces: Iterable[ObjectTrace]) -> set[int]:
    """Return the ids of arrays with memory that several views share."""
    arrays: dict[int, dict[int, Any]] = {}
    for trace in traces:
        for key, (_, *views) in trace.roots.items():
            arrays.setdefault(key, {}).update((id(view), view) for view in views)
    return {key for key, views in arrays.items() if len(views) > 1 and _overlap(views.values())}


def _overlap(arrays: Iterable[Any]) -> bool:
    end = -1
    for low, high in sorted(map(_bounds, arrays)):
        if low < end:
            return True
        end = max(end, high)
    return False


def _bounds(array: Any) -> tuple[int, int]:
    start = array.__array_interface__["data"][0]
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True) if length]
    low = start + sum(step for step in steps if step < 0)
    return low, start + sum(step for step in steps if step > 0) + (array.itemsize if array.size else 0)


def refer(packed: Packed, value: Any, units: Mapping[str, tuple[ObjectTrace, Unit]]) -> Blob:
    """Return the blob of a call, with handles of objects that the nodes have."""
    assert packed.pickler is not None
    trace, handles, namespace = ObjectTrace(packed), {}, packed.pickler.namespace
    roots = overlapping([trace, *(held for held, _ in units.values())])
    for held, unit in units.values():
        for key in (trace.ids & held.ids) - trace.owned if not trace.ids.isdisjoint(held.ids) else ():
            handle = unit.handle(key, held.object(key))
            if handle is not None and not unit.outdated(key, held, namespace):
                handles[key] = handle
    roots &= trace.ids
    if not handles and not roots:
        return packed.blob
    return pack(value, namespace, handles=handles, roots=roots).blob
