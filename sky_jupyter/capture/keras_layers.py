"""Keras models in a pickle: models with common layers keep sharing them.

Each pickler has a `Models`. A model that contains parts of another is pickled with it. A part that is met by itself is
pickled as a reference to that part of its owner.
"""

from __future__ import annotations

import contextlib
import io
import json
import types
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..node.serialization.keras_models import ASSETS, CONFIG, WEIGHTS, Place, is_keras, layers_of, part, parts, rebuilt

METADATA = "metadata.json"


class Models:
    """Keras models that one pickler has met.

    Parameters
    ----------
    owners : mapping of int to (Any, Place)
        For ids of parts: the model whose archive has the part, and its place there.

    Attributes
    ----------
    met : dict
        Objects that were pickled as archives, by id.
    untied : list of (Any, Any)
        A model, and a part of another that it will not share: its configuration does not list the part.
    """

    def __init__(self, owners: Mapping[int, tuple[Any, Place]] | None = None) -> None:
        self.owners = owners or {}
        self.met: dict[int, Any] = {}
        self.untied: list[tuple[Any, Any]] = []
        self._parts: dict[int, dict[int, tuple[Place, Any]]] = {}

    def parts(self, model: Any) -> dict[int, tuple[Place, Any]]:
        """Return the parts of a model, by id."""
        if id(model) not in self._parts:
            self._parts[id(model)] = {id(one): (place, one) for place, one in parts(model)}
        return self._parts[id(model)]

    def reduced(self, obj: Any, there: Collection[int]) -> Any:
        """Return how to rebuild an object, as ``__reduce__`` does.

        Return NotImplemented for an object that is not part of a model. ``there`` has the ids of objects on the nodes.
        """
        if (owner := self.owners.get(id(obj))) is not None:
            return part, owner
        if not is_keras(obj):
            return NotImplemented
        self.met[id(obj)] = obj
        given = [one for key, (_, one) in self.parts(obj).items() if self._is_given(key, obj, there)]
        customs = customs_of(obj)
        archive, known = archived(obj, [one for one in given if is_keras(one)])
        # Parts of another model's part belong to it, whether the configuration lists them or not.
        inner = set().union(*(self.parts(one).keys() for one in known.values()))
        inner |= {id(one) for one in known.values()}
        self.untied += [(obj, one) for one in given if id(one) not in inner]
        if not known and not customs:
            rebuild, (old,) = obj.__reduce__()
            return rebuild, (_same(old),)
        return rebuilt, (archive, known, customs, [one.trainable for one in layers_of(obj)])

    def _is_given(self, key: int, model: Any, there: Collection[int]) -> bool:
        owner = self.owners.get(key)
        return key in there or (owner is not None and owner[0] is not model)

    def common(self, memo: Collection[int], first: Collection[int] = ()) -> dict[int, tuple[Any, Place]]:
        """Return the owners of parts that several models have; empty if there are none.

        Parts that were also pickled alone count. ``first`` has the ids of models that cannot take another's parts.
        """
        # Models with most parts come first: some of their parts may be reachable only through them.
        models = sorted(self.met.values(), key=lambda model: (id(model) not in first, -len(self.parts(model))))
        owners: dict[int, tuple[Any, Place]] = {}
        needed = False
        for model in models:
            for key, (place, _) in self.parts(model).items():
                needed |= key in owners or key in memo
                owners.setdefault(key, (model, place))
        return owners if needed else {}


def archived(model: Any, given: Iterable[Any]) -> tuple[io.BytesIO, dict[int, Any]]:
    """Return a model's archive without the given parts, and these by their numbers."""
    from keras.src.backend.common import global_state
    from keras.src.saving import saving_lib, serialization_lib

    ids = {id(one): one for one in given}
    seen: dict[int, dict[str, Any]] = {key: {} for key in ids}
    with serialization_lib.ObjectSharingScope():
        global_state.get_global_attribute("shared_objects/id_to_config_map").update(seen)
        config = serialization_lib.serialize_keras_object(model)
    numbers: dict[int, int] = {}
    # The ids differ each time: replace them by numbers.
    _number(config, numbers)
    known = {numbers[key]: ids[key] for key, told in seen.items() if told and key in numbers}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(CONFIG, json.dumps(config))
        weights = saving_lib.H5IOStore(WEIGHTS, archive=file, mode="w")
        assets = saving_lib.DiskIOStore(ASSETS, archive=file, mode="w")
        try:
            left = {id(one) for one in known.values()}
            saving_lib._save_state(model, weights, assets, "", visited_saveables=left)
        except BaseException:
            weights.archive = None
            raise
        finally:
            weights.close()
            assets.close()
    return _same(archive), known


def _number(config: Any, numbers: dict[int, int]) -> None:
    if isinstance(config, dict):
        if "shared_object_id" in config:
            key = config["shared_object_id"]
            config["shared_object_id"] = numbers.setdefault(key, len(numbers))
        for one in config.values():
            _number(one, numbers)
    elif isinstance(config, (list, tuple)):
        for one in config:
            _number(one, numbers)


def _same(archive: io.BytesIO) -> io.BytesIO:
    """Return a Keras archive without the time at which it was saved.

    With it, an unchanged model would look changed a second later: it would be sent again, and its training on the nodes
    would be lost.
    """
    undated = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(undated, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == METADATA:
                facts = json.loads(content)
                facts["date_saved"] = ""
                content = json.dumps(facts).encode()
            new.writestr(zipfile.ZipInfo(name), content)
    undated.seek(0)
    return undated


def customs_of(model: Any) -> dict[str, Any]:
    """Return a model's custom classes and functions, by their registered names."""
    from keras.src.saving.object_registration import get_registered_name

    found: dict[str, Any] = {}
    for one in _pieces(model):
        custom = one if isinstance(one, (type, types.FunctionType)) else type(one)
        home = str(getattr(custom, "__module__", "keras"))
        if home.partition(".")[0] not in ("keras", "builtins", "numpy", "jax", "jaxlib", "torch"):
            found[get_registered_name(custom)] = custom
            found.setdefault(custom.__name__, custom)
    return found


def _pieces(model: Any) -> Iterator[Any]:
    """Yield the objects that a model's configuration may contain."""
    for one in layers_of(model) or [model]:
        yield one
        yield from filter(_is_piece, list(vars(one).values()))
        with contextlib.suppress(Exception):
            yield from filter(_is_piece, _leaves(one._compile_config.config))
        with contextlib.suppress(Exception):
            yield from filter(_is_piece, _leaves(one._auto_config.config))


def _is_piece(obj: Any) -> bool:
    return isinstance(obj, types.FunctionType) or (not isinstance(obj, type) and hasattr(obj, "get_config"))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value
