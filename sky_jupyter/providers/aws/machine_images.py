"""Machine images (AMIs) and the root volume: by architecture and accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from .clients import Clients
    from .context import AWSContext
    from .instance_type_catalog import InstanceType

# Public SSM parameters: Ubuntu 24.04; with NVIDIA's driver and EFA; with the Neuron driver.
_CPU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{debian}/hvm/ebs-gp3/ami-id"
_NVIDIA = "/aws/service/deeplearning/ami/{arch}/base-with-single-cuda-ubuntu-24.04/latest/ami-id"
_NEURON = "/aws/service/neuron/dlami/multi-framework/ubuntu-22.04/latest/image_id"
_DEBIAN = {"x86_64": "amd64", "arm64": "arm64"}
# Amazon's accelerators, and those for which no image has drivers.
_AMAZON, _NOT_NVIDIA = ("Trainium", "Inferentia"), ("Radeon", "Gaudi", "Qualcomm")
# Added to the image's size for environments, caches and files, unless `disk_gb` gives the size.
_FREE_GB = 50
# MB/s. gp3's own 125 MB/s, which are free, slow down the unpacking of packages.
THROUGHPUT, FREE_THROUGHPUT = 500, 125
# Settings of a volume that are copied from the image. Encryption only without a snapshot, which has its own.
_OF_VOLUME, _OF_EMPTY = ("SnapshotId", "VolumeSize", "VolumeType", "Iops", "Throughput"), ("Encrypted", "KmsKeyId")


@dataclass(frozen=True)
class MachineImage:
    """Image with its root volume, found by `find`."""

    id: str
    device: str
    disk_gb: int
    others: tuple[dict[str, Any], ...] = ()

    @property
    def volumes(self) -> list[dict[str, Any]]:
        """Block device mappings; all volumes end with the instance, despite the image."""
        return [self.root, *self.others]

    @property
    def root(self) -> dict[str, Any]:
        """Block device mapping of the root volume."""
        volume = {"VolumeSize": self.disk_gb, "VolumeType": "gp3", "Throughput": THROUGHPUT}
        return {"DeviceName": self.device, "Ebs": {**volume, "DeleteOnTermination": True}}


def find(aws: AWSContext, clients: Clients, region: str, spec: PoolSpec, type: InstanceType) -> MachineImage:
    """Return the image for a type in a region; botocore's errors are not translated."""
    id = aws.ami or str(clients.ssm(region).get_parameter(Name=parameter(type))["Parameter"]["Value"])
    found = clients.ec2(region).describe_images(ImageIds=[id])["Images"]
    if not found:
        raise ProvisionError(f"there is no image {id} in {region}: check ami= and the region")
    image = found[0]
    if image.get("Architecture", type.arch) != type.arch:
        raise ProvisionError(
            f"the image {id} is for {image['Architecture']}, and {type.name} is {type.arch}: "
            "name another image (ami=) or another type (instance_type=)"
        )
    device = str(image.get("RootDeviceName") or "/dev/sda1")
    mapped = image.get("BlockDeviceMappings", ())
    sizes = [one.get("Ebs", {}).get("VolumeSize") for one in mapped if one.get("DeviceName") == device]
    least = int(next((size for size in sizes if size), 8))
    asked = aws.disk_gb or getattr(spec, "disk_gb", None)
    others = [_ending(one) for one in mapped if "Ebs" in one and one["DeviceName"] != device]
    size = least + _FREE_GB if asked is None else max(least, round(asked))
    return MachineImage(id, device, size, tuple(others))


def _ending(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return an image's mapping of a volume, so that it ends with its instance."""
    given = mapping["Ebs"]
    names = _OF_VOLUME if given.get("SnapshotId") else (*_OF_VOLUME, *_OF_EMPTY)
    volume = {name: given[name] for name in names if name in given}
    return {"DeviceName": mapping["DeviceName"], "Ebs": {**volume, "DeleteOnTermination": True}}


def parameter(type: InstanceType) -> str:
    """Return the name of the public SSM parameter that has the current image's id."""
    if type.accelerator.startswith(_AMAZON):
        return _NEURON
    gpu = type.accelerator and not any(maker in type.accelerator for maker in _NOT_NVIDIA)
    return (_NVIDIA if gpu else _CPU).format(arch=type.arch, debian=_DEBIAN[type.arch])
