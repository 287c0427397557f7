"""NVIDIA's management library, as far as it tells how busy a GPU is: the few calls of it that this takes.

It comes with the driver. A call costs some microseconds, where a program that is started costs tens of
milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

LIBRARY = "libnvidia-ml.so.1"
# Where it lies under Windows' Linux, which no loader looks at.
_PLACES = (LIBRARY, "/usr/lib/wsl/lib/" + LIBRARY)
_TEXT = 96
_OK = 0


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    """What the driver keeps for itself is not in what is used here, as in nvidia-smi: of 80 GB about 0.6."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


# Of what size a structure is, and of which version.
_MEMORY_2 = ctypes.sizeof(_Memory2) | 2 << 24


class Nvml:
    """The library, opened, and some of its devices; made by `of`, kept as long as the process.

    Parameters
    ----------
    library
        The loaded library, initialised.
    handles : sequence
        Its names of the devices.
    """

    def __init__(self, library: ctypes.CDLL, handles: Sequence[ctypes.c_void_p]) -> None:
        self._library, self._handles = library, handles
        self.all = [(_text(library.nvmlDeviceGetName, handle), self._memory(handle).total) for handle in handles]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Nvml | None:
        """Devices by their index, or what their UUID begins with; None without the library.

        A slice of a device (MIG) is not looked at: the driver does not tell its use.
        """
        library = _load()
        if library is None:
            return None
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        named: dict[str, ctypes.c_void_p] = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == _OK:
                named[str(index)] = handle
                named[_text(library.nvmlDeviceGetUUID, handle).lower()] = handle
        found = [_named(named, id.lower()) for id in ids]
        return cls(library, [handle for handle in found if handle is not None])

    def look(self) -> Sequence[tuple[float, int]]:
        """What part of its time each device worked, and how many bytes of its memory are used."""
        return [(self._busy(handle), self._memory(handle).used) for handle in self._handles]

    def _busy(self, handle: ctypes.c_void_p) -> float:
        use = _Utilization()
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) != _OK:
            return 0.0
        return min(100, use.gpu) / 100

    def _memory(self, handle: ctypes.c_void_p) -> _Memory | _Memory2:
        newer = _Memory2(version=_MEMORY_2)
        # Drivers before 510 lack it.
        with contextlib.suppress(AttributeError):
            if self._library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(newer)) == _OK:
                return newer
        memory = _Memory()
        self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return memory


def _load() -> ctypes.CDLL | None:
    """The library, ready; None where there is none, or no driver for it. ``SKY_NVML`` names another."""
    given = os.environ.get("SKY_NVML")
    for place in [given] if given else _PLACES:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(place)
            return library if library.nvmlInit_v2() == _OK else None
    return None


def _named(named: dict[str, ctypes.c_void_p], id: str) -> ctypes.c_void_p | None:
    if id in named:
        return named[id]
    return next((handle for name, handle in named.items() if id.startswith("gpu-") and name.startswith(id)), None)


def _text(call: ctypes._NamedFuncPointer, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    call(handle, buffer, ctypes.c_uint(_TEXT))
    return buffer.value.decode(errors="replace")
