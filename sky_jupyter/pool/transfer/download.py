"""Download of files and folders, from each node separately."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ...errors import TransferError
from ...machines.local_machine import absolute
from ...node.files import manifest_diff
from ...node.files.file_manifest import FILE, ManifestEntry, from_wire, hashed, shown, to_wire, total, unpack
from ...node.protocol import rpc
from ...util.text import format_size
from .broadcast_tree import ask
from .transfer_job import Transfer, TransferJob, advice, copy, is_itself, together


class Download(TransferJob):
    """Download of one file or folder from nodes."""

    async def get(self, path: str, local: str | None) -> Transfer:
        """Fetch it from all nodes; from several, into a folder each."""
        found = await ask(self.control, rpc.LIST_FILES, self.nodes, path=to_wire(path))
        paths = {node: from_wire(one["path"]) for node, one in found.items()}
        errors = {node: one["error"] for node, one in found.items() if one["error"]}
        if wrong := [f"{self.name(node)}: {shown(paths[node])}: {error}" for node, error in errors.items()]:
            raise TransferError("; ".join(wrong))
        listings = {node: await self._unpack(node, paths[node], one["listing"]) for node, one in found.items()}
        names = {node: _name(path, paths[node]) for node in self.nodes}
        targets = self._targets(names, local)
        for node in self.nodes:
            self._check(node, targets[node], listings[node])
        needs = sum(manifest_diff.diff(targets[node], listings[node]).needs for node in self.nodes)
        free = manifest_diff.room_at(targets[self.nodes[0]])
        if needs > free:
            raise TransferError(
                f"{shown(path)} needs {format_size(needs)} here, and there is room for {format_size(free)} at "
                f"{shown(str(targets[self.nodes[0]].parent))}; make room, or name another place"
            )
        fetch = self._fetch if self.away else self._copy
        moved = sum(await together(fetch(n, paths[n], targets[n], listings[n]) for n in self.nodes))
        files = sum(entry.kind == FILE for entries in listings.values() for entry in entries)
        size = sum(map(total, listings.values()))
        sent, copied = (moved, 0) if self.away else (0, moved)
        return Transfer(shown(names[self.nodes[0]]), size, files, tuple(self.nodes), sent, copied)

    async def _unpack(self, node: int, path: str, listing: bytes) -> list[ManifestEntry]:
        try:
            return await asyncio.to_thread(unpack, listing)
        except ValueError as error:
            raise TransferError(f"{self.name(node)}: {shown(path)}: {error}") from None

    def _targets(self, names: Mapping[int, str], local: str | None) -> dict[int, Path]:
        if len(self.nodes) > 1:
            above = absolute(local or ".")
            return {node: above / f"node-{node}" / names[node] for node in self.nodes}
        within = local is None or local.endswith("/") or local == "."
        (node,) = self.nodes
        return {node: absolute(local or ".") / names[node] if within else absolute(local or ".")}

    def _check(self, node: int, target: Path, entries: Sequence[ManifestEntry]) -> None:
        clash = manifest_diff.diff(target, entries).clash
        if clash:
            raise TransferError(f"{shown(clash)} (of {self.name(node)}); {shown(advice(entries[0], target))}")

    async def _fetch(self, node: int, path: str, target: Path, entries: Sequence[ManifestEntry]) -> int:
        stands = manifest_diff.diff(target, entries)
        if not stands.absent and not stands.doubtful:
            return 0
        text = f"{shown(PurePath(path).name)} from {self.name(node)}"
        target.parent.mkdir(parents=True, exist_ok=True)

        def tell(there: int, size: int) -> None:
            self.tell(text, there, size)

        try:
            moved = await self.over_the_link(node, lambda machine: machine.download(path, target, progress=tell))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise TransferError(shown(f"{where}{error.strerror or error} (of {self.name(node)})")) from None
        if entries[0].kind == FILE:
            os.utime(target, ns=(entries[0].mtime, entries[0].mtime), follow_symlinks=False)
        return int(moved.sent)

    async def _copy(self, node: int, path: str, target: Path, entries: Sequence[ManifestEntry]) -> int:
        source = Path(path)
        if is_itself(source, target):
            return 0
        places = range(len(entries))
        known = await asyncio.to_thread(hashed, source, entries, places, lambda size: None)
        return await copy(self, shown(f"{source.name} to {target}"), source, target, known)


def _name(path: str, there: str) -> str:
    """Return the name here of what a node has found at ``there``."""
    name = PurePath(path).name
    # ".." would lead out of the target. Only the node knows that folder's name; it too may not lead out.
    return PurePath(os.path.normpath(f"/{there}")).name if name == ".." else name
