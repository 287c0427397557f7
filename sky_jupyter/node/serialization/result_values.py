"""Transfer of values and exceptions from a rank to the notebook.

A small value is sent with the end of its run. A larger one stays on the rank until it is accessed. Then it is sent as a
blob: a file with its arrays as separate buffers, which the notebook maps. A value that cannot be pickled is replaced by
its repr, with the reason.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pickle
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from ...util.text import format_size
from ..protocol.shared_bytes import AnyBytes, SharedBytes, SharedWriter, TooLarge
from ..runtime.instance_info import instance_info
from . import pickling, sharded_arrays, unpicklable_placeholders

SMALL = 1 << 20
_PLAIN = (type(None), bool, int, float, str, bytes)
# Longer texts and bytes are not copied into a pickle first.
_SMALL_TEXT = 1 << 12
# Bytes written between two checks for an interrupt.
_PIECE = 16 << 20
_SPARE_ROOM = 64 * 10**6
# Padding of a span: the hash is unused if all buffers are in one file.
_REST = (bytes(pickling.SPAN.size - 16),) if pickling.SPAN.size > 16 else ()


class ResultPickler(pickling.Pickler):
    """Pickler for results: notebook functions, and arrays moved to the host.

    A function that comes back uses the notebook's own globals.
    """

    whole = False

    def reducer_override(self, obj: Any) -> Any:
        reduced = sharded_arrays.reduced(obj, whole=self.whole)
        if reduced is not NotImplemented:
            return reduced
        if isinstance(obj, io.TextIOWrapper):
            # cloudpickle would send the file's text instead.
            raise TypeError("an open file stays with its process; return what is in it")
        figures = sys.modules.get("matplotlib.figure")
        if figures is not None and isinstance(obj, figures.Figure):
            return _reduced_figure(obj)
        return super().reducer_override(obj)


class WholePickler(ResultPickler):
    """Pickler for arrays that span ranks, as this rank's pieces.

    See `sharded_arrays.ShardAssembler`.
    """

    whole = True


def _reduced_figure(figure: Any) -> Any:
    """Reduce a figure without registering it with pyplot on the other side.

    Otherwise it would be shown twice.
    """
    make, arguments, state, *rest = figure.__reduce_ex__(5)
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name != "_restore_to_pylab"}
    return make, arguments, state, *rest


def dump(value: Any, limit: int) -> dict[str, Any]:
    """Return a value for the end of a run: as base64 pickle, or why it is not sent.

    The dict has ``"type"``, the name of the value's type, and ``"value"``, ``"large": True`` for more than ``limit``
    bytes, or ``"unpicklable"`` (the reason) with ``"repr"``.
    """
    kind = {"type": unpicklable_placeholders.type_of(value)}
    try:
        return {**kind, "value": _encoded(value, limit)}
    except TooLarge:
        return {**kind, "large": True}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kept = _instead(value, error, ResultPickler)
    if isinstance(kept, unpicklable_placeholders.RemoteRepr):
        return {**kind, "unpicklable": kept.reason, "repr": kept.text}
    try:
        return {**kind, "value": _encoded(kept, limit)}
    except TooLarge:
        return {**kind, "large": True}


def _encoded(value: Any, limit: int) -> str:
    return base64.b64encode(bytes(_pickled(value, SharedWriter(limit, shares=False)))).decode()


def _pickled(value: Any, writer: SharedWriter) -> AnyBytes:
    ResultPickler(cast("IO[bytes]", writer), pickling.main_namespace()).dump(value)
    return writer.written()


def dump_short(value: Any, limit: int, room: SharedBytes | None = None) -> dict[str, Any] | None:
    """Return a short call's end fields for a value: its type and its pickled bytes.

    Shared bytes are written to ``room``, if that is given. Returns None for a value that is larger than ``limit``, or
    cannot be sent unchanged.
    """
    writer = SharedWriter(limit, spare=lambda: [room] if room is not None else [])
    try:
        is_small = type(value) in _PLAIN and (type(value) not in (str, bytes) or len(value) < _SMALL_TEXT)
        pickled = pickle.dumps(value, 5) if is_small else _pickled(value, writer)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None
    return {"type": unpicklable_placeholders.type_of(value), "pickled": pickled}


def _instead(value: Any, error: BaseException, pickler: type[pickling.Pickler], name: str = "value") -> Any:
    rank = None
    with contextlib.suppress(Exception):
        rank = instance_info().rank
    return unpicklable_placeholders.replace_unpicklable(value, error, pickling.main_namespace(), pickler, rank, name)


def give(
    value: Any,
    places: Sequence[str],
    *,
    name: str = "value",
    whole: bool = False,
    strict: bool = False,
    most: int | None = None,
) -> dict[str, Any]:
    """Write a value of any size as a blob, to the first place with room.

    Parameters
    ----------
    value : object
        The value.
    places : sequence of str
        Candidate files.
    name : str
        Name of the value in messages.
    whole : bool
        Whether arrays that span ranks are written as pieces for a `ShardAssembler`.
    strict : bool
        Whether to refuse a value with a part that cannot be pickled.
    most : int, optional
        Most bytes of the blob; a larger one is not written.

    Returns
    -------
    dict
        ``"type"``, ``"repr"``, an array's ``"shape"``, and ``"path"`` or ``"unpicklable"`` (the reason).
    """
    told: dict[str, Any] = {
        "type": unpicklable_placeholders.type_of(value),
        "repr": unpicklable_placeholders.text_of(value),
    }
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        told["shape"] = [int(length) for length in shape if isinstance(length, int)]
    pickler = WholePickler if whole else ResultPickler
    try:
        pickled, buffers = _packed(value, pickler)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kept = _instead(value, error, pickler, name)
        if isinstance(kept, unpicklable_placeholders.RemoteRepr) or strict:
            standin = kept if isinstance(kept, unpicklable_placeholders.RemoteRepr) else first_standin(kept)
            return {**told, "unpicklable": standin.reason}
        pickled, buffers = _packed(kept, pickler)
    size = pickled.nbytes + sum(buffer.nbytes for buffer in buffers)
    if most is not None and size > most:
        return {**told, "unpicklable": f"it has {size:,} bytes, and {most:,} are the limit here"}
    return {**told, "path": _write(pickled, buffers, places)}


def why_unpicklable(value: Any, name: str) -> str:
    """Return why a value, or a part of it, cannot be pickled; empty if it can."""
    try:
        _packed(value, ResultPickler)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kept = _instead(value, error, ResultPickler, name)
        return (kept if isinstance(kept, unpicklable_placeholders.RemoteRepr) else first_standin(kept)).reason
    return ""


def first_standin(value: Any) -> unpicklable_placeholders.RemoteRepr:
    """Return the first placeholder in a container."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, unpicklable_placeholders.RemoteRepr):
            return item
        if type(item) in (dict, list, tuple):
            with contextlib.suppress(LookupError):
                return first_standin(item)
    raise LookupError("no stand-in")


def _packed(value: Any, pickler: type[pickling.Pickler]) -> tuple[memoryview, list[memoryview]]:
    buffers: list[memoryview] = []
    file = io.BytesIO()
    pickler(file, pickling.main_namespace(), buffer_callback=pickling.out_of_band(buffers)).dump(value)
    return file.getbuffer(), buffers


def _write(pickled: memoryview, buffers: Sequence[memoryview], places: Sequence[str]) -> str:
    """Write a blob for `pickling.load_blob` and return its path."""
    start = pickling.HEAD.size + len(buffers) * pickling.SPAN.size + len(pickled)
    spans = []
    for buffer in buffers:
        start += -start % pickling.ALIGNMENT
        spans.append((start, len(buffer)))
        start += len(buffer)
    path = room(places, start)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        # The file has its final size at once; its blocks show the progress.
        os.ftruncate(file.fileno(), start)
        head = pickling.HEAD.pack(pickling.MAGIC, len(pickled), len(spans))
        file.write(head + b"".join(pickling.SPAN.pack(*span, *_REST) for span in spans))
        _write_pieces(file, pickled)
        for (offset, _), buffer in zip(spans, buffers, strict=True):
            file.seek(offset)
            _write_pieces(file, buffer)
    return path


def _write_pieces(file: IO[bytes], data: memoryview) -> None:
    for at in range(0, len(data), _PIECE):
        file.write(data[at : at + _PIECE])


def room(places: Sequence[str], size: int) -> str:
    """Return the first path with room for a file of ``size`` bytes.

    In shared memory, at most what the machine can spare is used. Raises OSError when no place has room.
    """
    for path in places:
        free = shutil.disk_usage(Path(path).parent).free
        if path.startswith("/dev/shm/"):
            free = min(free, _spare_memory() // 2)
        if free > size + _SPARE_ROOM:
            return path
    folder = Path(places[-1]).parent
    free = shutil.disk_usage(folder).free

    raise OSError(
        f"it needs {format_size(size)}, and {format_size(_SPARE_ROOM)} to spare; {folder} has {format_size(free)} free"
    )


def _spare_memory() -> int:
    from ..system.metrics import MachineMonitor

    machine = MachineMonitor()
    return machine.memory - machine.used()


def dump_exception(error: BaseException | None) -> str | None:
    """Return an exception as base64 pickle; None if it cannot be pickled."""
    if error is None:
        return None
    # Its `__reduce_ex__` may raise anything, as SystemExit.
    with contextlib.suppress(BaseException):
        encoded = _encoded(error, SMALL)
        pickle.loads(base64.b64decode(encoded))
        return encoded
    return None
