"""Stopped pools: what starts them again, in a user's file beside the registry."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from ...errors import PoolError
from ...node.protocol.version import PROTOCOL
from ...spec.pool_spec import PoolSpec
from ...util.atomic_write import atomic_write
from ...util.state_folder import registry_path

if TYPE_CHECKING:
    from collections.abc import Sequence

STOPPED = "stopped"


def write(pool: str, spec: PoolSpec, ids: Sequence[str]) -> None:
    """Keep a pool's spec and its machines' ids, by node."""
    path = _path(pool)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = base64.b64encode(cloudpickle.dumps(spec)).decode()
    with atomic_write(path) as file:
        file.write(json.dumps({"protocol": PROTOCOL, "ids": list(ids), "spec": text}).encode("ascii"))
    path.chmod(0o600)


def read(pool: str, name: str) -> tuple[PoolSpec, list[str]]:
    """Return a pool's spec and machine ids; raise PoolError if they are unreadable.

    ``name`` is the pool's, for the message.
    """
    try:
        told = json.loads(_path(pool).read_bytes())
        if told["protocol"] != PROTOCOL:
            raise ValueError("another version of Sky Jupyter has stopped it")
        spec = cloudpickle.loads(base64.b64decode(told["spec"], validate=True))
        return spec, [str(id) for id in told["ids"]]
    except Exception as error:
        raise PoolError(f"pool {name!r} cannot be started: {error}; `%sky down {name}` ends its machines") from None


def remove(pool: str) -> None:
    """Forget a pool that has ended."""
    with contextlib.suppress(OSError):
        _path(pool).unlink()


def _path(pool: str) -> Path:
    return registry_path().parent / "stopped_pools" / f"{pool}.json"


__all__ = ["STOPPED", "read", "remove", "write"]
