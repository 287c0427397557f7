"""Rebuilding of Keras models that share layers with models sent earlier.

Keras pickles each model as an archive, so two models with a common layer would each get a copy. So only one of them,
the layer's owner, has the layer in its archive; the other refers to it by a number in its configuration.

Parts of a model have places, which the notebook and the nodes number in the same way.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

CONFIG, WEIGHTS, ASSETS = "config.json", "model.weights.h5", "assets"
"""Files of the archive, with Keras's names."""
Place = tuple[str, int, int, str]
"""A part's kind, its holder's number among the model's parts, its own number there, and its name."""
_SAID = {"name", "trainable", "dtype"}


class WithBackend(dict[str, Any]):
    """Values whose pickle imports Keras with the backend of this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Loaded in this order: the choice comes before the models.
        return _second, (_Choice(backend()), dict(self))


class _Choice:
    """Choice of a backend, made when this object is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return choose_backend, (self.name,)


def _second(first: None, second: dict[str, Any]) -> dict[str, Any]:
    return second


def backend() -> str:
    """Return the backend of this process's Keras; "" if Keras is not imported."""
    with contextlib.suppress(Exception):
        return str(sys.modules["keras"].backend.backend())
    return ""


def choose_backend(name: str) -> None:
    """Choose the backend for a later import of Keras, unless one is chosen already."""
    if name and "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", name)


def is_keras(obj: Any) -> bool:
    """Return True if Keras pickles an object as an archive.

    These are layers, models, optimizers, metrics and losses.
    """
    saveable = sys.modules.get("keras.src.saving.keras_saveable")
    return saveable is not None and isinstance(obj, saveable.KerasSaveable)


def parts(model: Any) -> Iterator[tuple[Place, Any]]:
    """Yield a model's layers, metrics, optimizers and variables with places."""
    holders = list(_holders(model))
    for number, (kind, holder) in enumerate(holders):
        if holder is not model:
            yield (kind, number, 0, _name(holder)), holder
    for number, (_, holder) in enumerate(holders):
        for index, variable in enumerate(_variables(holder)):
            yield ("variable", number, index, _name(variable)), variable


def part(model: Any, place: Place) -> Any:
    """Return the part at a place of a model.

    Raises LookupError when the place has another part by now.
    """
    kind, number, index, name = place
    found = None
    for at, (of, holder) in enumerate(_holders(model)):
        if at == number:
            found = holder if of == kind else None
            if kind == "variable":
                found = dict(enumerate(_variables(holder))).get(index)
            break
    if found is None or _name(found) != name:
        raise LookupError(f"the model has no such {kind} any more: {name}")
    return found


def _holders(model: Any) -> Iterator[tuple[str, Any]]:
    layers = layers_of(model) or [model]
    yield from (("layer", layer) for layer in layers)
    for layer in layers:
        yield from (("metric", metric) for metric in getattr(layer, "_metrics", None) or () if is_keras(metric))
    for layer in layers:
        optimizer = getattr(layer, "optimizer", None)
        while is_keras(optimizer):
            yield "optimizer", optimizer
            optimizer = getattr(optimizer, "inner_optimizer", None)


def layers_of(model: Any) -> list[Any]:
    """Return a model and all of its layers, recursively."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else []


def _variables(holder: Any) -> list[Any]:
    # An optimizer also lists the variables that it trains.
    layer = hasattr(holder, "_flatten_layers")
    names = ("_trainable_variables", "_non_trainable_variables") if layer else ("_variables",)
    own = [getattr(holder, name, None) for name in names]
    return [one for variables in own if isinstance(variables, list) for one in variables]


def _name(obj: Any) -> str:
    # A layer's name may be generated, and differ in this process.
    return type(obj).__name__ if is_keras(obj) else str(getattr(obj, "name", ""))


def rebuilt(archive: io.BytesIO, given: dict[int, Any], customs: dict[str, Any], trains: list[bool]) -> Any:
    """Build a model from its archive.

    Parameters
    ----------
    archive : file
        The archive, as returned by `archived` of ``sky_jupyter.capture.keras_layers``.
    given : dict
        Existing parts, by their numbers in the configuration.
    customs : dict
        Classes and functions that are not Keras's own, by their names in the configuration.
    trains : list of bool
        Whether each of the model's layers is trainable.

    Returns
    -------
    object
        The model.
    """
    from keras.src.backend.common import global_state
    from keras.src.saving import saving_lib, serialization_lib

    with zipfile.ZipFile(archive) as file:
        config = json.loads(file.read(CONFIG))
        _count_on(config, given, {})
        _leave_out(config, customs)
        with serialization_lib.ObjectSharingScope():
            global_state.get_global_attribute("shared_objects/id_to_obj_map").update(given)
            model = serialization_lib.deserialize_keras_object(config, custom_objects=customs, safe_mode=False)
        weights = saving_lib.H5IOStore(io.BytesIO(file.read(WEIGHTS)), mode="r")
        has_assets = any(name.startswith(ASSETS) for name in file.namelist())
        assets = saving_lib.DiskIOStore(ASSETS, archive=file, mode="r") if has_assets else None
        for layer, trainable in zip(layers_of(model), trains, strict=False):
            if layer.trainable != trainable:
                layer.trainable = trainable
        failed: set[int] = set()
        errors: dict[int, Any] = {}
        try:
            # Existing parts keep their weights.
            visited = {id(one) for one in given.values()}
            saving_lib._load_state(
                model, weights, assets, "", visited_saveables=visited, failed_saveables=failed, error_msgs=errors
            )
        finally:
            weights.close()
            if assets is not None:
                assets.close()
    if failed:
        saving_lib._raise_loading_failure(errors)
    return model


def _leave_out(config: Any, customs: dict[str, Any]) -> None:
    """Remove standard fields that a custom class's constructor does not accept.

    Keras adds them to each layer's configuration.
    """
    if isinstance(config, dict):
        kind, inner = customs.get(config.get("registered_name") or ""), config.get("config")
        if isinstance(kind, type) and isinstance(inner, dict):
            taken = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
            if all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
                for name in _SAID.intersection(inner).difference(taken):
                    del inner[name]
        config = list(config.values())
    if isinstance(config, list):
        for one in config:
            _leave_out(one, customs)


def _count_on(config: Any, given: dict[int, Any], calls: dict[str, int]) -> None:
    """Shift call numbers of given layers, which have been called before.

    Then the model's graph refers to its own calls.
    """
    if isinstance(config, list):
        for one in config:
            _count_on(one, given, calls)
    if not isinstance(config, dict):
        return
    if config.get("shared_object_id") in given:
        # It is not rebuilt, nor are its parts; but it is called.
        for node in config.get("inbound_nodes", ()):
            _count_on(node, given, calls)
        return
    if config.get("class_name") == "__keras_tensor__":
        history = config["config"].get("keras_history")
        if history:
            history[1] += calls.get(history[0], 0)
        return
    if {"layers", "input_layers", "output_layers"} <= config.keys():
        layers = config["layers"]
        calls = {
            one["name"]: len(given[one["shared_object_id"]]._inbound_nodes)
            for one in layers
            if one.get("inbound_nodes") and one.get("shared_object_id") in given
        }
        for ends in ("input_layers", "output_layers"):
            _count_ends(config[ends], calls)
    for one in config.values():
        _count_on(one, given, calls)


def _count_ends(ends: Any, calls: dict[str, int]) -> None:
    if isinstance(ends, list) and len(ends) == 3 and isinstance(ends[0], str):
        ends[1] += calls.get(ends[0], 0)
        return
    for one in ends.values() if isinstance(ends, dict) else ends:
        _count_ends(one, calls)
