"""Values of ranks to the notebook: written to files there, which are mapped here or come over the link first."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ...errors import NodeLost, SkyError, TransferError
from ...node.protocol import rpc
from ...node.serialization import pickling
from ...node.serialization.remote_repr import RemoteRepr
from ...node.serialization.result_values import room
from ...util.background_tasks import BackgroundTasks
from ...util.text import rank_label
from ..base.event_loop import Tick, loop, no_tick
from ..base.events import Event, Listener, NoticeEvent, Silent, ignore
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from ..runs import log_reader
from .base import Moving

# A repr is not worth a longer wait.
_MOMENT = TIMEOUTS.transfers.repr
_left = BackgroundTasks()


class ValueView(Protocol):
    """Where it is seen how far values are."""

    def on_event(self, event: Event) -> None:
        """Take in how far they are; any thread."""
        ...

    def refresh(self) -> None:
        """Draw what is new."""
        ...


Shows = Callable[[str], AbstractContextManager[ValueView]]
"""Makes the view of values that come, of a title."""


def unshown(title: str) -> AbstractContextManager[ValueView]:
    """Show nothing."""
    return contextlib.nullcontext(Silent())


@dataclass(frozen=True)
class Brought:
    """What has become of one rank's value: a blob, or why there is none."""

    rank: int
    path: Path | None = None
    type: str = ""
    repr: str = ""
    shape: tuple[int, ...] | None = None
    # Why it cannot be pickled; why the rank has it no more; the end of a message that it has no such name.
    unpicklable: str = ""
    gone: str = ""
    lacks: str | None = None

    @classmethod
    def read(cls, rank: int, end: Mapping[str, Any]) -> Brought:
        """What a rank's end of a fetch says."""
        if end.get("status") != "ok":
            why = end.get("evalue") or end.get("text") or f"it was {end.get('status')}"
            return cls(rank, gone=str(why))
        texts = {name: str(end[name]) for name in ("type", "repr", "unpicklable", "gone", "lacks") if name in end}
        path, shape = end.get("path"), end.get("shape")
        return cls(
            rank,
            Path(path) if isinstance(path, str) else None,
            shape=tuple(shape) if isinstance(shape, (list, tuple)) else None,
            **texts,
        )

    def stand_in(self, why: str) -> RemoteRepr:
        """What stands for it here."""
        return RemoteRepr(self.repr or f"<{self.type} object>", self.type, why, self.rank)


class ValuesContext(TransferContext, log_reader.PagesContext, Protocol):
    """The pool, and what it knows of the values that come."""

    @property
    def shows(self) -> Shows:
        """How it is shown that values come."""
        ...

    @property
    def wanted(self) -> set[str]:
        """The names of those that are coming."""
        ...

    @property
    def held(self) -> dict[str, int]:
        """How many results hold a run's values."""
        ...

    def fetch(
        self,
        ranks: Sequence[int],
        content: Mapping[str, Any],
        what: str,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        check: Callable[[Mapping[int, Brought]], None] = lambda found: None,
    ) -> dict[int, Brought]:
        """Bring values of ranks here; see `fetch`."""
        ...


class Bringing(Moving):
    """The values of some ranks on their way here.

    Parameters
    ----------
    ranks : sequence of int
        Of nodes that the pool has.
    what : str
        What it is called.
    """

    pool: ValuesContext

    def __init__(self, pool: ValuesContext, ranks: Sequence[int], listener: Listener, what: str) -> None:
        self.per_node = pool.spec.ranks_per_node
        super().__init__(pool, sorted({rank // self.per_node for rank in ranks}), listener)
        self.what = what
        self.keys = {rank: secrets.token_hex(8) for rank in ranks}
        self._far: dict[int, tuple[int, int]] = {}
        self._waited = False

    async def bring(
        self, content: Mapping[str, Any], check: Callable[[Mapping[int, Brought]], None] = lambda found: None
    ) -> dict[int, Brought]:
        """Have the files of all ranks here, or why there are none.

        Parameters
        ----------
        content : mapping
            What ranks are asked for; see `node.kernel.result_store.ResultStore.export`.
        check : callable
            Told what the ranks have before anything crosses the link; may raise.
        """
        self.pool.wanted.update(self.keys.values())
        done = False
        try:
            several = await asyncio.gather(*(self._have_written(node, dict(content)) for node in self.nodes))
            found = {brought.rank: brought for part in several for brought in part}
            check(found)
            if self.away:
                self._far = {}
                found = await self._over_the_link(found)
            else:
                found = {rank: self._taken(one) for rank, one in found.items()}
            done = True
            return dict(sorted(found.items()))
        finally:
            self.pool.wanted.difference_update(self.keys.values())
            # A file of this machine is ours by now, and the agent forgets it when it is next asked.
            if self.away or not done:
                _left.start(self._forget())

    def _taken(self, brought: Brought) -> Brought:
        """The same, with a file that the agent does not know, and does not remove."""
        if brought.path is None:
            return brought
        return replace(brought, path=brought.path.rename(brought.path.with_name(f"value-{self.keys[brought.rank]}")))

    async def _have_written(self, node: int, content: dict[str, Any]) -> list[Brought]:
        keys = {rank: key for rank, key in self.keys.items() if rank // self.per_node == node}
        done: list[Brought] = []
        while keys:
            wanted = sorted(self.pool.wanted)
            try:
                facts = (await self.control.ask(rpc.FETCH_VALUES, [node], keys=keys, wanted=wanted, content=content))[
                    node
                ]
            except NodeLost as error:
                return [*done, *(Brought(rank, gone=str(error)) for rank in keys)]
            for rank, one in facts.items():
                self._note(rank, one)
                if "end" in one:
                    done.append(Brought.read(rank, one["end"]))
                    del keys[rank]
        return done

    def _note(self, rank: int, facts: Mapping[str, Any]) -> None:
        if facts["waits"] and "end" not in facts and not self._waited:
            self._waited = True
            self.listener(NoticeEvent(f"rank {rank} is busy; its value comes when it has time"))
        self._tell(rank, facts["there"], facts["total"], "" if not self.away else f"writing {self.what} there")

    def _tell(self, rank: int, there: int, total: int, what: str = "") -> None:
        self._far[rank] = there, total
        if any(total for _, total in self._far.values()):
            sums = [sum(numbers) for numbers in zip(*self._far.values(), strict=True)]
            self.tell(what or self.what, sums[0], sums[1])

    async def _over_the_link(self, found: Mapping[int, Brought]) -> dict[int, Brought]:
        coming = [self._download(one) for one in found.values() if one.path is not None]
        done = await asyncio.gather(*coming, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                for other in done:
                    if isinstance(other, Brought):
                        discard(other)
                raise one
        return {**found, **{one.rank: one for one in done if isinstance(one, Brought)}}

    async def _download(self, brought: Brought) -> Brought:
        source, key = brought.path, self.keys[brought.rank]

        def move(machine: Any) -> Path:
            return self._move(machine, str(source), key, brought.rank)

        path = await self.over_the_link(brought.rank // self.per_node, move)
        return replace(brought, path=path)

    def _move(self, machine: Any, source: str, key: str, rank: int) -> Path:
        """Runs in a thread, which an interrupt reaches when it tells how far it is."""
        host = self.pool.hosts[0]
        size = int(machine.run(f"wc -c <'{source}'").out)
        try:
            path = Path(room([str(host.blobs / f"value-{key}"), str(host.folder / f"value-{key}")], size))
        except OSError as error:
            raise TransferError(f"there is no room for {self.what} here: {error}") from None
        folder = path.with_suffix(".part")
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            machine.download(source, folder / "value", progress=lambda there, total: self._tell(rank, there, total))
            (folder / "value").replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return path

    async def _forget(self) -> None:
        for node in self.nodes:
            keys = [key for rank, key in self.keys.items() if rank // self.per_node == node]
            with contextlib.suppress(Exception):  # the next fetch says that they are not wanted
                await self.control.ask(rpc.DISCARD_VALUES, [node], keys=keys)


def load(brought: Brought) -> Any:
    """The value in a file that has come, which is removed: what has mapped it needs its name no more."""
    assert brought.path is not None
    try:
        return pickling.load_blob(brought.path)
    finally:
        discard(brought)


def discard(brought: Brought) -> None:
    """Remove a file that has come."""
    if brought.path is not None:
        brought.path.unlink(missing_ok=True)


class Untouched:
    """The values of a run that are on its ranks; held by its `CellResult`.

    Parameters
    ----------
    run : str
        Its id.
    ranks : iterable of int
        Those that it was on.
    shape : int
        How often the pool's nodes had been changed then.
    """

    def __init__(self, pool: ValuesContext, run: str, ranks: Iterable[int], shape: int) -> None:
        self.pool, self.run, self.ranks, self.shape = pool, run, tuple(ranks), shape
        self._loop = loop().loop

    def bring(self, ranks: Sequence[int]) -> tuple[dict[int, Any], dict[int, str]]:
        """The values of ranks, shown as they come; of those that are not there any more, why."""
        if self.shape != self.pool.shape:
            why = "the pool's nodes have been changed since, and all of its ranks are new processes"
            return {}, dict.fromkeys(ranks, why)
        values: dict[int, Any] = {}
        missing: dict[int, str] = {}
        what = f"the value{'s' * (len(ranks) > 1)} of {rank_label(ranks)}"
        try:
            with self.pool.shows(what) as view:
                found = self.pool.fetch(ranks, {"of": self.run}, what, view.on_event, view.refresh)
        except (SkyError, OSError) as error:
            return {}, dict.fromkeys(ranks, str(error))
        try:
            for rank, brought in found.items():
                if brought.gone:
                    missing[rank] = brought.gone
                else:
                    values[rank] = value_in(brought)
        finally:
            for brought in found.values():
                discard(brought)
        return values, missing

    def printed(self, rank: int, stream: str, before: int) -> str:
        """What a rank wrote to an output before the event of this number."""
        return "".join(log_reader.before(self.pool, self.run, rank, stream, before))

    def text(self, rank: int) -> str | None:
        """The repr of a rank's value; None where that cannot be had in a moment."""
        if self.shape != self.pool.shape:
            return None
        end = time.monotonic() + _MOMENT

        def give_up() -> None:
            if time.monotonic() > end:
                raise TimeoutError

        with contextlib.suppress(SkyError, OSError, TimeoutError):
            found = self.pool.fetch([rank], {"of": self.run, "about": True}, "a repr", tick=give_up)
            return found[rank].repr or None
        return None

    def hold(self) -> Callable[[], None]:
        """Have the ranks hold the values until what this returns has been called, from anywhere."""
        held = self.pool.held
        held[self.run] = held.get(self.run, 0) + 1

        def let_go() -> None:
            # May be called in the midst of anything: it takes no lock.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._let_go)

        return let_go

    def _let_go(self) -> None:
        left = self.pool.held.pop(self.run, 0) - 1
        if left > 0:
            self.pool.held[self.run] = left
        elif self.pool.state == "ready" and self.pool.shape == self.shape:
            _left.start(self._release())

    async def _release(self) -> None:
        for node in sorted({rank // self.pool.spec.ranks_per_node for rank in self.ranks}):
            with contextlib.suppress(Exception):  # newer values push it out
                await self.pool.control.ask(rpc.RELEASE_VALUE, [node], run=self.run, ranks=list(self.ranks))


def value_in(brought: Brought) -> Any:
    """The value that has come, or what stands for it."""
    if brought.unpicklable or brought.path is None:
        return brought.stand_in(brought.unpicklable)
    try:
        return load(brought)
    except Exception as error:
        return brought.stand_in(not_rebuilt(error))


def not_rebuilt(error: Exception) -> str:
    """Why a value is not here that has come."""
    return f"it could not be rebuilt in the notebook: {type(error).__name__}: {error}"


def fetch(
    pool: ValuesContext,
    ranks: Iterable[int],
    content: Mapping[str, Any],
    what: str,
    listener: Listener = ignore,
    tick: Callable[[], None] = no_tick,
    check: Callable[[Mapping[int, Brought]], None] = lambda found: None,
) -> dict[int, Brought]:
    """Bring what ranks are asked for here; see `Bringing.bring`. Whoever calls it loads or discards each."""
    bringing = Bringing(pool, list(ranks), listener, what)
    return bringing.wait(bringing.bring(content, check), tick)


__all__ = [
    "Bringing",
    "Brought",
    "Shows",
    "Untouched",
    "discard",
    "fetch",
    "load",
    "not_rebuilt",
    "unshown",
    "value_in",
]
