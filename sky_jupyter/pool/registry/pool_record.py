"""Record in a pool's folder, for managers that attach and guests that join.

The folder and the file are readable by their user only, like the pool's keys. The file is JSON, so that every version
can read what kind of pool it is and how to end it. The spec, with the user's own plugins, is a pickle in it, which is
only loaded if the protocol fits.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from ...errors import PoolError
from ...node.protocol.version import PROTOCOL
from ...spec.pool_spec import PoolSpec
from ...util.atomic_write import atomic_write

if TYPE_CHECKING:
    from .registry import PoolRow

_NAME = "pool.record"
_MOST = 1 << 30
# The first byte of records of versions without a protocol number.
_PICKLE = b"\x80"


@dataclass(frozen=True)
class PoolRecord:
    """Data of a live pool that a later manager needs.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool, with its plugins.
    scheduler : str
        The scheduler's address, which a restarted one keeps.
    ids : tuple of str
        The provider's ids of the machines.
    hosts : tuple of dict
        Nodes, folders and process of each host; see `launch.adopt`.
    direct : bool
        Whether agents can be reached without the scheduler.
    shape : int
        How often the pool was resized.
    ends : float, optional
        Unix time, by this machine's clock, at which its ``ttl`` is over.
    incarnations : mapping of str to str
        The incarnations of machines that may come back, by id.
    """

    spec: PoolSpec
    scheduler: str
    ids: tuple[str, ...]
    hosts: tuple[dict[str, Any], ...]
    direct: bool
    shape: int = 0
    ends: float | None = None
    incarnations: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the record into the pool's folder, atomically."""
        facts: dict[str, Any] = {"scheduler": self.scheduler, "ids": self.ids, "direct": self.direct}
        facts |= {"shape": self.shape, "incarnations": dict(self.incarnations)}
        hosts = [dict(host) for host in self.hosts]
        spec = base64.b64encode(cloudpickle.dumps(self.spec)).decode()
        text = json.dumps({"protocol": PROTOCOL, **facts, "ends": self.ends, "hosts": hosts, "spec": spec})
        with atomic_write(folder / _NAME) as file:
            file.write(text.encode("ascii"))

    @classmethod
    def read(cls, row: PoolRow) -> PoolRecord:
        """Return the record of a pool in the registry.

        Raises PoolError if it is missing, another user's, of another version, or malformed.
        """
        told = _told(row)
        number = _protocol(told)
        if number != PROTOCOL:
            raise PoolError(f"{unfit(row.name, number)}; `%sky runs --name {row.name}` lists what ran there")
        with _readable(row):
            spec = cloudpickle.loads(base64.b64decode(told["spec"], validate=True))
            if not isinstance(spec, PoolSpec):
                raise TypeError("its spec is none")
            hosts = tuple(_host_read(host) for host in told["hosts"])
            ids = tuple(str(id) for id in told["ids"])
            shape, ends = int(told["shape"]), told["ends"]
            scheduler, direct, ends = str(told["scheduler"]), bool(told["direct"]), ends and float(ends)
            # Records of earlier versions lack them.
            incarnations = {str(id): str(one) for id, one in told.get("incarnations", {}).items()}
            return cls(spec, scheduler, ids, hosts, direct, shape, ends, incarnations)

    @staticmethod
    def read_nodes(row: PoolRow) -> tuple[Any, ...]:
        """Read what changes with a pool's nodes, unpickling nothing; or raise PoolError."""
        told = _told(row)
        with _readable(row):
            return told["shape"], told["ids"], told.get("incarnations"), told["hosts"]

    @staticmethod
    def hosts_of(row: PoolRow) -> list[dict[str, Any]]:
        """Return the hosts of a pool of any version, to end them.

        Raises PoolError if they cannot be read.
        """
        told = _told(row)
        with _readable(row):
            if not told:
                # The record is a pickle of classes that may have changed since.
                return list(cloudpickle.loads((Path(row.folders[0]) / _NAME).read_bytes()).hosts)
            return [_host_read(host) for host in told["hosts"]]


def protocol_of(row: PoolRow) -> int | None:
    """Return a pool's protocol number; None if it is not known."""
    with contextlib.suppress(PoolError):
        return _protocol(_told(row))
    return None


def unfit(name: str, protocol: int) -> str:
    """Return why a pool of another protocol cannot be attached to."""
    version = "an earlier" if protocol < PROTOCOL else "a later"
    number = f"protocol {protocol}" if protocol else "without a protocol's number"
    return (
        f"pool {name!r} was made by {version} version of Sky Jupyter ({number}, this is {PROTOCOL}) and cannot be "
        f"attached to: `%sky down --name {name}` ends it"
    )


def _told(row: PoolRow) -> dict[str, Any]:
    """Return the record without unpickling; {} without a protocol."""
    if not row.folders:
        raise PoolError(f"pool {row.name!r} is not ready; `%sky status` says when it is")
    path = Path(row.folders[0]) / _NAME
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            for facts in (os.fstat(file.fileno()), path.parent.stat()):
                if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
                    raise PoolError(f"{path} is not this user's own, and is not read")
            data = file.read(_MOST)
    except FileNotFoundError:
        raise PoolError(f"pool {row.name!r} is gone, or was not made with --keep") from None
    except OSError as error:
        raise PoolError(f"{path} cannot be read: {error.strerror or error}") from None
    if data.startswith(_PICKLE):
        return {}
    with _readable(row):
        told = json.loads(data)
        if isinstance(told, dict) and isinstance(told.get("protocol"), int):
            return told
    raise PoolError(f"{path} holds no pool")


def _protocol(told: Mapping[str, Any]) -> int:
    return int(told.get("protocol", 0))


@contextlib.contextmanager
def _readable(row: PoolRow) -> Iterator[None]:
    """Convert errors in the block to a PoolError that names the record."""
    try:
        yield
    except PoolError:
        raise
    except Exception as error:
        path = Path(row.folders[0]) / _NAME
        raise PoolError(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def _host_read(told: Mapping[str, Any]) -> dict[str, Any]:
    from ...machines.link import encoding

    return {**told, "target": encoding.target(told["target"])} if "target" in told else dict(told)
