"""Upload of files or values: once over the link, then from node to node."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import CaptureError, LinkLost, NodeLost, SpecError, TransferError
from ...node.files.file_manifest import (
    FILE,
    ManifestEntry,
    batches,
    from_wire,
    hashed,
    pack,
    shown,
    to_wire,
    total,
    walk,
)
from ...node.files.piece_transfer import read
from ...node.protocol import rpc
from ...util.text import format_size
from ..base.events import Listener, NoticeEvent
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from .broadcast_tree import BroadcastTree, Failure, NodePath, ask
from .transfer_job import Stopped, Transfer, TransferJob, advice, copy, is_itself

# Limit of names in one call of a machine, in bytes.
_NAMES = 200_000
_GOODBYE = TIMEOUTS.transfers.goodbye
# Values up to this size are not resumed.
_SOON, _FEW = 4 << 20, 200


class Upload(TransferJob):
    """Upload of one file, folder or set of blobs to nodes.

    Parameters
    ----------
    pool : TransferContext
        The pool.
    source : Path
        Local path.
    nodes : sequence of int
        The nodes.
    listener : callable
        Receives the progress.
    run : str
        Run that owns the blobs; "" for a path that the user has chosen.
    code : bool
        Whether it is the user's own code, for the pool's folder of code.
    """

    def __init__(
        self,
        pool: TransferContext,
        source: Path,
        nodes: Sequence[int],
        listener: Listener,
        run: str = "",
        *,
        code: bool = False,
    ) -> None:
        super().__init__(pool, nodes, listener)
        self.source, self.run, self.code = source, run, code
        self.what = "values" if run else "code" if code else shown(source.name or str(source))
        self.entries: list[ManifestEntry] = []
        self.found: dict[int, dict[str, Any]] = {}
        self.sent = self.copied = 0

    # -- other machines ----------------------------------------------------------------------------

    async def put(self, target: str = "") -> Transfer:
        """Send it to all nodes, once over the link.

        Errors that can be foreseen are raised before anything is sent.
        """
        await self._read()
        await self._look(target)
        lacking = [node for node in self.nodes if self.found[node]["absent"] or self.found[node]["doubtful"]]
        alone: list[int] = []
        if lacking:
            await self._hash(lacking)
            alone = await self._bring(lacking)
        return self._done(alone)

    async def _read(self) -> None:
        try:
            self.entries = await asyncio.to_thread(walk, self.source)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> SpecError:
        return SpecError(shown(f"{error.filename or self.source}: {error.strerror}" if error.strerror else str(error)))

    async def _look(self, target: str) -> None:
        """Find its place on each node, and check that it fits there."""
        listing = await self._listing()
        # The agent makes a folder for each run.
        place = {"path": to_wire(target), "run": self.run, "code": self.code}
        self.found = await ask(self.control, rpc.COMPARE_FILES, self.nodes, listing=listing, **place)
        wrong = [f"{self.name(node)}: {found['clash']}" for node, found in self.found.items() if found["clash"]]
        if wrong:
            raise TransferError(f"{'; '.join(wrong)}; {shown(advice(self.entries[0], target))}")
        tight = [node for node, found in self.found.items() if found["needs"] > found["free"]]
        if tight:
            self._refuse_for_room(tight)

    def _refuse_for_room(self, tight: Sequence[int]) -> None:
        lines = [
            f"{self.name(node)} has room for {format_size(self.found[node]['free'])} "
            f"at {shown(from_wire(self.found[node]['path']))}, "
            f"and {self.what} needs {format_size(self.found[node]['needs'])}"
            for node in tight
        ]
        if self.run:
            raise CaptureError("\n".join(lines) + "; make large values inside the cell")
        raise TransferError("\n".join(lines) + "; make room there, or name another place")

    async def _listing(self) -> bytes:
        try:
            return await asyncio.to_thread(pack, self.entries)
        except OSError as error:
            raise self._unreadable(error) from None

    async def _hash(self, nodes: Iterable[int]) -> None:
        """Compute the hashes of files that nodes may lack."""
        wanted = {index for node in nodes for key in ("absent", "doubtful") for index in self.found[node][key]}
        size, read = sum(self.entries[index].size for index in wanted), 0

        def tell(more: int) -> None:
            nonlocal read
            read += more
            self.tell(f"reading {self.what}", read, size)

        try:
            self.entries = await asyncio.to_thread(hashed, self.source, self.entries, sorted(wanted), tell)
        except OSError as error:
            raise self._unreadable(error) from None

    async def _bring(self, lacking: Sequence[int]) -> list[int]:
        """Send it to one node and spread it; return nodes that only this machine reaches."""
        listing = await self._listing()
        places = {node: NodePath(found["path"], found["spool"]) for node, found in self.found.items()}
        size = max(sum(self.entries[index].size for index in self.found[node]["absent"]) for node in lacking)
        spread = BroadcastTree(self.control, secrets.token_hex(8), listing, size, places, self._tell_copies)
        apart = [node for node in lacking if self.host(node).apart]
        others = [node for node in lacking if node not in apart]
        have = [node for node in self.nodes if node not in lacking and not self.host(node).apart]
        try:
            await spread.begin()
            if others and not have:
                have = [others.pop(0)]
                await self._send(spread, have[0])
            failures = await spread.run(have, others)
            for node, failure in failures.items():
                if failure.kind == "source":
                    text = f"{self.name(node)} cannot be reached from another node ({failure.why}): sent from here"
                    self.listener(NoticeEvent(text))
                    apart.append(node)
            for node in apart:
                await self._send(spread, node)
            self._check(failures)
            return apart
        finally:
            # Also after a cancellation; an agent that is not reached forgets it when other transfers come.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(spread.close(), _GOODBYE)

    def _check(self, failures: Mapping[int, Failure]) -> None:
        if failures and self.control.closing:
            # The pool has ended: these nodes are not the cause.
            raise (CaptureError if self.run else TransferError)(self.control.why_closed)
        lines = []
        for node, failure in failures.items():
            if failure.kind == "full":
                needs, free = (format_size(self.found[node][key]) for key in ("needs", "free"))
                lines.append(f"{self.name(node)} ran out of room: {self.what} needs {needs}, {free} were free")
            elif failure.kind != "source":
                lines.append(f"{self.name(node)}: {failure.why}")
        if lines:
            raise (CaptureError if self.run else TransferError)("\n".join(lines))

    def _tell_copies(self, there: Mapping[int, int]) -> None:
        size = total(self.entries)
        if size and there:
            each = ", ".join(f"{node} {100 * done // size} %" for node, done in sorted(there.items()))
            with contextlib.suppress(Stopped):
                self.tell(f"{self.what} from node to node", sum(there.values()), size * len(there), f" ({each})")

    async def _send(self, spread: BroadcastTree, node: int) -> None:
        """Upload what a node lacks, and check that it has arrived."""
        found = self.found[node]
        missing = found["absent"]
        try:
            if found["doubtful"] or found["spooled"]:
                missing = await spread.settle(node)
            files = [self.entries[index] for index in missing if self.entries[index].kind == FILE]
            size = total(files)
            if size <= _SOON and len(files) <= _FEW:
                await self._put(node, files)
            else:
                await self._upload(node, files, size)
            missing = await spread.settle(node)
        except (OSError, NodeLost) as error:
            self._check({node: Failure("error", str(error))})
        if missing:
            name = shown(self.entries[missing[0]].name) or self.what
            raise TransferError(f"{self.name(node)}: {name} did not come whole; did it change meanwhile? put it again")

    async def _put(self, node: int, files: Sequence[ManifestEntry]) -> None:
        """Send few bytes in one command."""
        spool = PurePosixPath(from_wire(self.found[node]["spool"]))

        def move(machine: Any) -> None:
            machine.put({spool / one.token: read(self.source, [(one.name, 0, one.size)]) for one in files})

        await self.over_the_link(node, move)
        self.sent += total(files)

    async def _upload(self, node: int, files: Sequence[ManifestEntry], size: int) -> None:
        target = from_wire(self.found[node]["spool"])
        text, before = f"{self.what} to {self.name(node)}", 0
        for part in batches(files, _NAMES, measure=_name_size):
            names = {entry.name: entry.token for entry in part}
            told: list[int] = []

            def tell(there: int, _: int, told: list[int] = told, before: int = before) -> None:
                told[1:] = [there]
                self.tell(text, before + there, size)

            def move(machine: Any, names: Any = names, tell: Any = tell, told: list[int] = told) -> Any:
                told.clear()
                try:
                    return machine.upload(self.source, target, names=names, progress=tell)
                except LinkLost:
                    # The next attempt finds these bytes there.
                    self.sent += told[-1] - told[0] if told else 0
                    raise

            moved = await self.over_the_link(node, move)
            self.sent += moved.sent
            before += moved.sent + moved.there

    def _done(self, alone: Iterable[int] = ()) -> Transfer:
        files = sum(entry.kind == FILE for entry in self.entries)
        size = total(self.entries)
        return Transfer(self.what, size, files, tuple(self.nodes), self.sent, self.copied, tuple(alone))

    # -- this machine ------------------------------------------------------------------------------

    async def put_here(self, target: str) -> Transfer:
        """Copy it for local nodes, which share this machine's files."""
        nodes, self.nodes = self.nodes, self.nodes[:1]
        await self._read()
        await self._look(target)
        found, self.nodes = self.found[self.nodes[0]], nodes
        root = Path(from_wire(found["path"]))
        if not is_itself(self.source, root) and (found["absent"] or found["doubtful"]):
            await self._hash(nodes[:1])
            self.copied = await copy(self, shown(f"{self.what} to {root}"), self.source, root, self.entries)
        return self._done()


def _name_size(entry: ManifestEntry) -> int:
    """Return the most bytes that a name and token take in a message."""
    return 6 * len(entry.name) + 64
