"""Accelerators of this machine, from nvidia-smi, and their shares per rank."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...spec.accelerators import Accelerator

VISIBLE = "CUDA_VISIBLE_DEVICES"
QUERY = ("--query-gpu=index,uuid,name", "--format=csv,noheader")
_ROW = re.compile(r"(?P<index>\d+), (?P<uuid>GPU-[0-9a-fA-F-]+), (?P<name>\S.*?)\s*\Z")
_PATIENCE = 10.0
# JAX's share of a device's memory, and the variables that control it: if the user sets one, we set none.
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_SAYS = (FRACTION, "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR")
# JAX's default for one process.
_ALONE = 0.75


@dataclass(frozen=True)
class Device:
    """Accelerator: its id for CUDA_VISIBLE_DEVICES and its name."""

    id: str
    kind: str


@dataclass(frozen=True)
class Devices:
    """Accelerators that a machine's ranks may use, in order.

    Parameters
    ----------
    all : tuple of Device
        The accelerators.
    narrowed : bool
        Whether the user's CUDA_VISIBLE_DEVICES selected them.
    """

    all: tuple[Device, ...] = ()
    narrowed: bool = False

    def __len__(self) -> int:
        return len(self.all)

    def __str__(self) -> str:
        if not self.all:
            return f"no accelerator ({VISIBLE} names none)" if self.narrowed else "no accelerator that nvidia-smi shows"
        kinds = [device.kind for device in self.all]
        text = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        return f"{text} ({VISIBLE}={','.join(device.id for device in self.all)})" if self.narrowed else text

    @property
    def kinds(self) -> tuple[str, ...]:
        """Name of each accelerator."""
        return tuple(device.kind for device in self.all)

    def of_kind(self, wanted: str) -> int:
        """Return how many are of a kind such as ``A100``."""
        return sum(is_kind(wanted, kind) for kind in self.kinds)

    def can_be_shared(self, ranks: int) -> bool:
        """Return True if each rank can have an equal share of whole devices."""
        return bool(self.all) and len(self) % ranks == 0

    def shares(self, ranks: int) -> list[Devices]:
        """Return contiguous equal shares of the ranks; empty ones if impossible."""
        each = len(self) // ranks if self.can_be_shared(ranks) else 0
        return [Devices(self.all[rank * each : (rank + 1) * each], self.narrowed) for rank in range(ranks)]

    def environment(self) -> dict[str, str]:
        """Return environment variables that restrict a process to these devices."""
        if not self.all:
            return {}
        env = {VISIBLE: ",".join(device.id for device in self.all)}
        # By default CUDA numbers the fastest device 0, and nvidia-smi the first slot's.
        return env if self.narrowed else {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def present(env: Mapping[str, str] = os.environ) -> Devices:
    """Return this machine's NVIDIA devices that CUDA_VISIBLE_DEVICES allows."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Devices()
    try:
        asked = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return Devices()
    return parse(asked.stdout.splitlines(), env.get(VISIBLE))


def parse(rows: Sequence[str], visible: str | None = None) -> Devices:
    """Parse the lines of nvidia-smi; apply CUDA_VISIBLE_DEVICES if given.

    A line of another form is a message, such as ``No devices were found``. As in CUDA, an entry of the variable that is
    not a device, or is repeated, ends the list.
    """
    found = [match for row in rows if (match := _ROW.match(row.strip()))]
    if visible is None:
        return Devices(tuple(Device(match["index"], match["name"]) for match in found))
    chosen: dict[int | str, Device] = {}
    for word in filter(None, (part.strip() for part in visible.split(","))):
        named = [number for number, match in enumerate(found) if _names(word, number, match["uuid"])]
        if word.startswith("MIG-") and found:
            # A slice of a device; only the driver knows which device.
            key: int | str = word
            device = Device(word, f"MIG slice of {found[0]['name']}")
        elif len(named) == 1:
            key, device = named[0], Device(word, found[named[0]]["name"])
        else:
            break
        if key in chosen:
            break
        chosen[key] = device
    return Devices(tuple(chosen.values()), narrowed=True)


def sharing(devices: Devices, ranks: int, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables for ranks that share devices.

    JAX allocates three quarters of a device's memory at once, in each process. A rank's share must leave room for the
    others.
    """
    if not devices.all or ranks < 2 or any(env.get(name) for name in _SAYS):
        return {}
    return {FRACTION: f"{_ALONE / ranks:.3f}"}


def shared_by(devices: Devices, ranks: int, env: Mapping[str, str] = os.environ) -> str:
    """Return a note that ranks share devices, and the consequences; or ""."""
    if not devices.all or ranks < 2 or devices.can_be_shared(ranks):
        return ""
    part = sharing(devices, ranks, env).get(FRACTION)
    memory = f"JAX takes {part} of its memory in each ({FRACTION}); " if part else ""
    return (
        f"{ranks} ranks share {devices}: {memory}collectives among them go over the CPU (gloo), and what needs a GPU "
        "a rank for those, as JAX does, computes on the CPU"
    )


def why_not_shared(devices: Devices, ranks: int) -> str:
    """Return why devices cannot be shared equally, and what to do."""
    fits = [str(number) for number in range(1, len(devices) + 1) if len(devices) % number == 0]
    return (
        f"{ranks} ranks cannot share {devices} equally: have {' or '.join(fits)} of them, or choose the devices with "
        f"{VISIBLE} ({VISIBLE}= for none)"
    )


def is_kind(wanted: str, name: str) -> bool:
    """Return True if a driver's device name matches a kind such as A100-80GB.

    For example ``NVIDIA A100-SXM4-80GB``.
    """
    return Accelerator.parse(wanted).fits(name)


def _names(word: str, number: int, uuid: str) -> bool:
    return word == str(number) or (word.startswith("GPU-") and uuid.lower().startswith(word.lower()))
