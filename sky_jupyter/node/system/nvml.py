"""NVML (NVIDIA's management library): the few calls for GPU metrics.

It comes with the driver. A call takes some microseconds; starting nvidia-smi takes tens of milliseconds.

The package nvidia-ml-py is not used. Its import takes 70 to 300 ms and 4 to 18 MB in each agent, bare hosts and
environments would need one more wheel, and it does not find WSL's library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

LIBRARY = "libnvidia-ml.so.1"
# Its path in WSL, which the loader does not search.
_PLACES = (LIBRARY, "/usr/lib/wsl/lib/" + LIBRARY)
_TEXT = 96
_OK = 0


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    """Memory info of version 2: used memory without the driver's reserve.

    nvidia-smi shows the same number. The driver reserves about 0.6 of 80 GB.
    """

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


# Size and version of the structure.
_MEMORY_2 = ctypes.sizeof(_Memory2) | 2 << 24


class Nvml:
    """NVML with some of its devices; made by `of`.

    Parameters
    ----------
    library : CDLL
        The loaded library, initialised.
    handles : sequence
        NVML's handles of the devices.
    """

    def __init__(self, library: ctypes.CDLL, handles: Sequence[ctypes.c_void_p]) -> None:
        self._library, self._handles = library, handles
        self.all = [(_text(library.nvmlDeviceGetName, handle), self._memory(handle).total) for handle in handles]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Nvml | None:
        """Open devices by index or UUID prefix; None without the library.

        A slice of a device (MIG) is skipped: the driver does not report its use.
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
        """Return the utilization and used memory of each device."""
        return [(self._busy(handle), self._memory(handle).used) for handle in self._handles]

    def _busy(self, handle: ctypes.c_void_p) -> float:
        use = _Utilization()
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) != _OK:
            return 0.0
        return min(100, use.gpu) / 100

    def _memory(self, handle: ctypes.c_void_p) -> _Memory | _Memory2:
        newer = _Memory2(version=_MEMORY_2)
        # Drivers before 510 do not have it.
        with contextlib.suppress(AttributeError):
            if self._library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(newer)) == _OK:
                return newer
        memory = _Memory()
        self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return memory


def _load() -> ctypes.CDLL | None:
    """Load and initialise NVML; None without library or driver.

    ``SKY_NVML`` names another library.
    """
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
