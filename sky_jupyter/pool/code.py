"""The user's own code to a pool's nodes: kept as it is here, sent where it is missing, told where it has changed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.code import Code, LocalCode
from ..errors import CaptureError, TransferError
from ..node.modules import FOLDER, INDEX
from . import launch, remote
from .events import Listener
from .loop import Tick, loop
from .sending import Sending

if TYPE_CHECKING:
    from .manager import Pool

_PATIENCE = 10.0


class PoolCode:
    """One a pool, made with it. Its folder here is the nodes' own where they are this machine's.

    Attributes
    ----------
    local : LocalCode
        What the nodes are to have.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.local = LocalCode()
        # What the folder here has; which version each host has, by its folder there.
        self._here: tuple[Path, str] = (Path(), "")
        self._there: dict[str, str] = {}
        # What was brought to nodes and is no more: those that were not met since have it still.
        self._gone: set[str] = set()

    def look(self, modules: Iterable[str]) -> Code:
        """What the nodes are to have with these modules; see `LocalCode.look`."""
        return self.local.look(modules)

    def bring(self, code: Code, hosts: Sequence[launch.Host], on_send: Listener, tick: Tick) -> dict[str, Any]:
        """See that hosts have it; what their ranks are told of it.

        Raises
        ------
        CaptureError
            When it cannot be brought there.
        """
        if not code.version:
            return {}
        folder = self.pool.hosts[0].folder / FOLDER
        self._gone = (self._gone | {*code.gone}) - code.sources.keys()
        if self._here != (folder, code.version):
            try:
                _write(code, folder)
            except OSError as error:
                raise CaptureError(
                    f"{error.filename or folder} cannot be brought to the nodes: {error.strerror or error}"
                ) from None
            self._here = (folder, code.version)
        self._send(code.version, folder, hosts, on_send, tick)
        self.local.commit(code)
        return {"modules": code.version}

    def _send(self, version: str, folder: Path, hosts: Sequence[launch.Host], on_send: Listener, tick: Tick) -> None:
        there = [host for host in hosts if isinstance(host, remote.RemoteHost)]
        lacking = [host for host in there if self._there.get(host.there) != version]
        if not lacking:
            return
        control = self.pool.control
        assert control is not None
        nodes = [node for host in lacking for node in host.nodes]
        sending = Sending(self.pool, folder, nodes, on_send, code=True)
        try:
            sending.wait(sending.put(), tick)
        except TransferError as error:
            raise CaptureError(f"the notebook's own code could not be brought to the nodes: {error}") from None
        if self._gone:
            loop().call(control.ask("uncode", nodes, names=sorted(self._gone)), timeout=_PATIENCE)
        self._there.update({host.there: version for host in lacking})


def _write(code: Code, folder: Path) -> None:
    """Have a folder hold what is to be there, each file whole at any time, and no more what is gone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for place, source in code.sources.items():
        target = folder / place
        if place not in code.changed and _is_same(target, source.stamp):
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(target, source.path.read_bytes() if source.stamp[1] < 1 << 20 else source.path)
        os.utime(target, ns=(source.stamp[0], source.stamp[0]))
    _replace(folder / INDEX, code.index)
    for place in code.gone:
        (folder / place).unlink(missing_ok=True)


def _is_same(target: Path, stamp: tuple[int, int, int]) -> bool:
    with contextlib.suppress(OSError):
        info = target.stat()
        return (info.st_mtime_ns, info.st_size) == stamp[:2]
    return False


def _replace(target: Path, content: bytes | Path) -> None:
    """Put a file in its place at once."""
    part = target.with_name(f".{target.name}.part")
    if isinstance(content, Path):
        shutil.copyfile(content, part)
    else:
        part.write_bytes(content)
    part.chmod(0o600)
    os.replace(part, target)
