"""What a launch must know of an instance type: architecture, accelerator, EFA."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import NoCapacity

if TYPE_CHECKING:
    from .clients import Clients

# Every fourth card of these has an IP address too.
_EFA_BY_FOUR = ("p5.", "p5e.")


@dataclass(frozen=True)
class LaunchType:
    """Instance type, described by `describe`."""

    name: str
    architecture: str
    nvidia: bool
    neuron: bool
    efa: int

    def efa_card(self, card: int) -> dict[str, Any]:
        """Return the options of the network interface on one of its EFA cards."""
        if card == 0:
            return {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "efa"}
        both = card % 4 == 0 and self.name.startswith(_EFA_BY_FOUR)
        return {"NetworkCardIndex": card, "DeviceIndex": 1, "InterfaceType": "efa" if both else "efa-only"}


_lock = threading.Lock()
_known: dict[str, LaunchType] = {}


def describe(clients: Clients, region: str, name: str) -> LaunchType:
    """Return an instance type; the caller translates botocore's errors."""
    with _lock:
        if name in _known:
            return _known[name]
    found = clients.ec2(region).describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    if not found:
        raise NoCapacity(f"{region}: no {name}")
    facts = found[0]
    network = facts.get("NetworkInfo", {})
    made = LaunchType(
        name,
        "arm64" if "arm64" in facts.get("ProcessorInfo", {}).get("SupportedArchitectures", ()) else "x86_64",
        nvidia=any(gpu.get("Manufacturer", "").upper() == "NVIDIA" for gpu in facts.get("GpuInfo", {}).get("Gpus", ())),
        neuron=bool(facts.get("NeuronInfo") or facts.get("InferenceAcceleratorInfo")),
        efa=int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)) if network.get("EfaSupported") else 0,
    )
    with _lock:
        _known[name] = made
    return made
