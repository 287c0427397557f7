"""Files that Keras writes in a rank: atomically, and backups by the head alone.

Ranks of one machine write files of the same names. Each file is written under a temporary name in its folder and then
renamed, so that no rank reads or changes another rank's incomplete file.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_lib

from . import model_hooks

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# ``(model, epoch) -> epoch``, a collective. ``epoch`` is the epoch at which this rank would resume, -1 for none. All
# ranks get the head's epoch and, unless it is -1, the head's values of the model.
Share = Callable[[Any, int], int]
_NONE = -1


def install(info: InstanceInfo, share: Share) -> None:
    """Make every rank write files atomically, and only the head write backups."""
    for module, name in (
        (saving_lib, "save_model"),
        (saving_lib, "save_weights_only"),
        (legacy_h5_format, "save_model_to_hdf5"),
    ):
        if hasattr(module, name):
            setattr(module, name, _whole(getattr(module, name), info.rank))
    backup: Any = keras.callbacks.BackupAndRestore
    backup.on_train_begin = _restore(backup.on_train_begin, info, share)
    for name in ("_save_model", "on_train_end"):
        if hasattr(backup, name):
            setattr(backup, name, _by_head(getattr(backup, name), info))


def _whole(original: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """Wrap a function ``(model, path, ...)`` so that it writes its file atomically."""

    @functools.wraps(original)
    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        named = isinstance(filepath, (str, os.PathLike))
        path = os.fspath(filepath) if named else ""
        # A folder, a model in several files, or a bucket: not a single file.
        if not isinstance(path, str) or not path.endswith((".keras", ".h5")) or "://" in path:
            return original(model, filepath, *args, **kwargs)
        place = os.path.realpath(path)
        folder, name = os.path.split(place)
        # Keras takes the format from the ending.
        beside = os.path.join(folder, f".sky-{rank}-{os.getpid()}-{name[-64:]}")
        try:
            result = original(model, beside, *args, **kwargs)
            if os.path.exists(place):
                shutil.copymode(place, beside)
            os.replace(beside, place)
        finally:
            if os.path.lexists(beside):
                os.unlink(beside)
        return result

    return save


def _by_head(original: Callable[..., Any], info: InstanceInfo) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        if info.is_head or model_hooks.in_partial_run():
            original(self, *args, **kwargs)

    return method


def _restore(original: Callable[..., Any], info: InstanceInfo, share: Share) -> Callable[..., Any]:
    """Resume training from the head's backup, on all ranks."""

    @functools.wraps(original)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        if info.is_head or model_hooks.in_partial_run():
            original(self, logs)
        if not model_hooks.in_partial_run():
            epoch = share(self.model, _epoch_of(self.model))
            if epoch != _NONE:
                self.model._initial_epoch = epoch

    return on_train_begin


def _epoch_of(model: Any) -> int:
    epoch = getattr(model, "_initial_epoch", None)
    return epoch if isinstance(epoch, int) else _NONE
