"""Shipping of the user's own modules to nodes, when they have changed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...capture.project_files import CodeSnapshot, LocalCode, SourceFile
from ...errors import CaptureError, TransferError
from ...node.files import file_writer
from ...node.files.file_manifest import to_wire
from ...node.files.file_writer import Receiver
from ...node.files.open_folder import forget
from ...node.kernel.project_modules import FOLDER, INDEX
from ...node.protocol import rpc
from ..base.event_loop import Tick, loop
from ..base.events import Listener
from ..context import TransferContext
from ..hosts import launch
from .upload import Upload

_PIECE = 1 << 20


class PoolCode:
    """The user's modules on one pool; made with it.

    ``local`` is what the nodes should have. The local folder is the nodes' own if they are local.
    """

    def __init__(self, pool: TransferContext) -> None:
        self.pool = pool
        self.local = LocalCode()
        # The local folder and its version; the version of each remote folder.
        self._here: tuple[Path, str] = (Path(), "")
        self._there: dict[str, str] = {}
        # Deleted files that some nodes may still have.
        self._gone: set[str] = set()
        # Several threads may send the first call with new code.
        self._bringing = threading.Lock()

    def bring(self, code: CodeSnapshot, hosts: Sequence[launch.Host], on_send: Listener, tick: Tick) -> dict[str, Any]:
        """Send code with files to hosts that lack it; return what their ranks are told.

        Raises CaptureError if that fails.
        """
        with self._bringing:
            return self._bring(code, hosts, on_send, tick)

    def _bring(self, code: CodeSnapshot, hosts: Sequence[launch.Host], on_send: Listener, tick: Tick) -> dict[str, Any]:
        folder = self.pool.hosts[0].folder / FOLDER
        self._gone = (self._gone | {*code.gone}) - code.sources.keys()
        if self._here != (folder, code.version):
            try:
                _write(code, folder)
            except OSError as error:
                raise CaptureError(
                    f"{error.filename or folder} cannot be sent to the nodes: {error.strerror or error}"
                ) from None
            self._here = (folder, code.version)
        self._send(code.version, folder, hosts, on_send, tick)
        self.local.commit(code)
        return {"modules": code.version}

    def _send(self, version: str, folder: Path, hosts: Sequence[launch.Host], on_send: Listener, tick: Tick) -> None:
        there = [host for host in hosts if not host.here]
        lacking = [host for host in there if self._there.get(host.there) != version]
        if not lacking:
            return
        control = self.pool.control
        nodes = [node for host in lacking for node in host.nodes]
        if self._gone:
            # Deleted first, as a folder may have replaced a file.
            names = [to_wire(name) for name in sorted(self._gone)]
            loop().call(control.ask(rpc.DELETE_CODE, nodes, names=names))
        sending = Upload(self.pool, folder, nodes, on_send, code=True)
        try:
            sending.wait(sending.put(), tick)
        except TransferError as error:
            raise CaptureError(f"the notebook's own code could not be sent to the nodes: {error}") from None
        self._there.update({host.there: version for host in lacking})


def _write(code: CodeSnapshot, folder: Path) -> None:
    """Update a folder to the code, each file atomically; remove old ones."""
    # The folder of an ended pool is not recreated: nothing would remove it.
    to, whole = Receiver(folder, folder=True, spool=folder.with_name(f"{folder.name}-writing"), above=False), False
    try:
        forget(to.place, code.gone)
        for place, source in code.sources.items():
            _write_one(to, place, source, changed=place in code.changed)
        to.put("index", INDEX, code.index)
        whole = True
    finally:
        to.close(whole=whole)


def _write_one(to: Receiver, place: str, source: SourceFile, *, changed: bool) -> None:
    if not source.to and not changed and _is_same(to.place.stat(place), source.stamp):
        return
    to.place.make_above(place)
    if source.to:
        to.link(place, source.to)
        return
    with open(source.path, "rb") as file, to.part("file", place) as part:
        part.truncate(0)
        while data := file.read(_PIECE):
            file_writer.write(part, data)
    to.put_part("file", place, 0o600, source.stamp[0])


def _is_same(info: os.stat_result | None, stamp: tuple[int, int, int, int]) -> bool:
    return info is not None and stat.S_ISREG(info.st_mode) and (info.st_mtime_ns, info.st_size) == stamp[:2]
