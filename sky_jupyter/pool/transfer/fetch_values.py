"""Fetch of ranks' values as files, mapped here or sent over the link."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ...errors import NodeLost, SkyError, TransferError
from ...node.protocol import rpc
from ...node.serialization import pickling
from ...node.serialization.result_values import room
from ...node.serialization.unpicklable_placeholders import RemoteRepr
from ...util.background_tasks import BackgroundTasks
from ...util.text import rank_label
from ..base.event_loop import Tick, loop, no_tick
from ..base.events import Event, Listener, NoticeEvent, NullView, ignore
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from ..runs import log_reader
from .transfer_job import Stopped, TransferJob, together

# The timeout of a repr.
_MOMENT = TIMEOUTS.transfers.repr
_left = BackgroundTasks()
# Numbers of calls, by which agents see which of two is the later one.
_turns = itertools.count()


class ValueView(Protocol):
    """View of the progress of values."""

    def on_event(self, event: Event) -> None:
        """Update the progress; thread-safe."""
        ...

    def refresh(self) -> None:
        """Draw the progress."""
        ...


class ViewFactory(Protocol):
    """Factory of the view of a fetch, from its title and its text at the end."""

    def __call__(self, title: str, done: str = ...) -> AbstractContextManager[ValueView]:
        """Return the view as a context."""
        ...


def unshown(title: str, done: str = "") -> AbstractContextManager[ValueView]:
    """Return a context with the null view."""
    return contextlib.nullcontext(NullView())


@dataclass(frozen=True)
class FetchedValue:
    """Result of a fetch from one rank: a blob, or why there is none."""

    rank: int
    path: Path | None = None
    type: str = ""
    repr: str = ""
    shape: tuple[int, ...] | None = None
    # Why it cannot be pickled; why the rank has lost it; the suffix of a message that the rank lacks the name.
    unpicklable: str = ""
    gone: str = ""
    lacks: str | None = None
    # Of several names: those that cannot be pickled, with the reason.
    left: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, rank: int, end: Mapping[str, Any]) -> FetchedValue:
        """Build it from a rank's end event."""
        if end.get("status") != "ok":
            why = end.get("evalue") or end.get("text") or f"it was {end.get('status')}"
            return cls(rank, gone=str(why))
        texts = {name: str(end[name]) for name in ("type", "repr", "unpicklable", "gone", "lacks") if name in end}
        path, shape = end.get("path"), end.get("shape")
        return cls(
            rank,
            Path(path) if isinstance(path, str) else None,
            shape=tuple(shape) if isinstance(shape, (list, tuple)) else None,
            left={str(name): str(why) for name, why in dict(end.get("left") or {}).items()},
            **texts,
        )

    def stand_in(self, why: str) -> RemoteRepr:
        """Return a `RemoteRepr` of the value."""
        return RemoteRepr(self.repr or f"<{self.type} object>", self.type, why, self.rank)


class ValuesContext(TransferContext, log_reader.PagesContext, Protocol):
    """The pool as seen by fetches of values."""

    @property
    def shows(self) -> ViewFactory:
        """The factory of views of fetches."""
        ...

    @property
    def wanted(self) -> set[str]:
        """The keys of values that are under way."""
        ...

    @property
    def held(self) -> dict[str, int]:
        """The number of results that hold each run's values."""
        ...

    def fetch(
        self,
        ranks: Sequence[int],
        content: Mapping[str, Any],
        what: str,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        check: Callable[[Mapping[int, FetchedValue]], None] = lambda found: None,
    ) -> dict[int, FetchedValue]:
        """Fetch values of ranks into files; see `fetch`."""
        ...


class ValueFetch(TransferJob):
    """Fetch of one value from some ranks.

    Parameters
    ----------
    pool : ValuesContext
        The pool.
    ranks : sequence of int
        The ranks.
    listener : callable
        Receives the progress.
    what : str
        Name of the value for messages.
    """

    pool: ValuesContext

    def __init__(self, pool: ValuesContext, ranks: Sequence[int], listener: Listener, what: str) -> None:
        self.per_node = pool.spec.ranks_per_node
        super().__init__(pool, sorted({rank // self.per_node for rank in ranks}), listener)
        self.what = what
        self.keys = {rank: secrets.token_hex(8) for rank in ranks}
        self._far: dict[int, tuple[int, int]] = {}
        # The files that are here.
        self._arrived: list[Path] = []
        self._waited = False

    async def bring(
        self, content: Mapping[str, Any], check: Callable[[Mapping[int, FetchedValue]], None] = lambda found: None
    ) -> dict[int, FetchedValue]:
        """Fetch each rank's value into a file; return the results.

        ``content`` is the request to the ranks, as in `node.kernel.result_store.ResultStore.export`. ``check`` is
        called with their answers before anything crosses the link; it may raise.
        """
        self.pool.wanted.update(self.keys.values())
        done = False
        try:
            several = await asyncio.gather(*(self._have_written(node, dict(content)) for node in self.nodes))
            found = {fetched.rank: fetched for part in several for fetched in part}
            check(found)
            if self.away:
                self._far = {}
                found = await self._over_the_link(found)
            else:
                found = {rank: self._taken(one) for rank, one in found.items()}
            done = True
            return dict(sorted(found.items()))
        except BaseException:
            # A download's thread that still runs removes its own file.
            self.stop.set()
            for path in self._arrived:
                path.unlink(missing_ok=True)
            raise
        finally:
            self.pool.wanted.difference_update(self.keys.values())
            # A local file has been renamed, and its agent forgets it at the next request.
            if self.away or not done:
                _left.start(self._forget())

    def _taken(self, fetched: FetchedValue) -> FetchedValue:
        """Rename a local file, so that the agent does not remove it."""
        if fetched.path is None:
            return fetched
        path = fetched.path.rename(fetched.path.with_name(f"value-{self.keys[fetched.rank]}"))
        self._arrived.append(path)
        return replace(fetched, path=path)

    async def _have_written(self, node: int, content: dict[str, Any]) -> list[FetchedValue]:
        keys = {rank: key for rank, key in self.keys.items() if rank // self.per_node == node}
        done: list[FetchedValue] = []
        while keys:
            asked = {
                "keys": keys,
                "wanted": sorted(self.pool.wanted),
                "turn": [self.control.generation, next(_turns), *filter(None, [self.control.guest])],
                "content": content,
            }
            try:
                facts = (await self.control.ask(rpc.FETCH_VALUES, [node], **asked))[node]
            except NodeLost as error:
                return [*done, *(FetchedValue(rank, gone=str(error)) for rank in keys)]
            for rank, one in facts.items():
                self._note(rank, one)
                if "end" in one:
                    done.append(FetchedValue.read(rank, one["end"]))
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

    async def _over_the_link(self, found: Mapping[int, FetchedValue]) -> dict[int, FetchedValue]:
        done = await together(self._download(one) for one in found.values() if one.path is not None)
        return {**found, **{one.rank: one for one in done}}

    async def _download(self, fetched: FetchedValue) -> FetchedValue:
        source, key = fetched.path, self.keys[fetched.rank]

        def move(machine: Any) -> Path:
            return self._move(machine, str(source), key, fetched.rank)

        path = await self.over_the_link(fetched.rank // self.per_node, move)
        return replace(fetched, path=path)

    def _move(self, machine: Any, source: str, key: str, rank: int) -> Path:
        """Download a file in a thread, which an interrupt stops."""
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
            self._arrived.append(path)
            if self.stop.is_set():
                path.unlink(missing_ok=True)
                raise Stopped
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return path

    async def _forget(self) -> None:
        for node in self.nodes:
            keys = [key for rank, key in self.keys.items() if rank // self.per_node == node]
            with contextlib.suppress(Exception):  # the next fetch says that they are not wanted
                await self.control.ask(rpc.DISCARD_VALUES, [node], keys=keys)


def load(fetched: FetchedValue) -> Any:
    """Load the value from a fetched file; remove the file, which stays mapped."""
    assert fetched.path is not None
    try:
        return pickling.load_blob(fetched.path)
    finally:
        discard(fetched)


def discard(fetched: FetchedValue) -> None:
    """Remove a fetched file."""
    if fetched.path is not None:
        fetched.path.unlink(missing_ok=True)


class LazyValues:
    """Values of a run that are still on its ranks; part of its `CellResult`.

    Parameters
    ----------
    pool : ValuesContext
        The pool.
    run : str
        The run's id.
    ranks : sequence of int
        The run's ranks.
    shape : int
        How often the pool had been resized.
    """

    def __init__(self, pool: ValuesContext, run: str, ranks: Sequence[int], shape: int) -> None:
        self.pool, self.run, self.ranks, self.shape = pool, run, ranks, shape

    def bring(self, ranks: Sequence[int]) -> tuple[dict[int, Any], dict[int, str]]:
        """Fetch ranks' values; return them, and why others are missing."""
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
            for rank, fetched in found.items():
                if fetched.gone:
                    missing[rank] = fetched.gone
                else:
                    values[rank] = value_in(fetched)
        finally:
            for fetched in found.values():
                discard(fetched)
        return values, missing

    def printed(self, rank: int, stream: str, before: int) -> str:
        """Return a rank's output to a stream before an event."""
        return "".join(log_reader.before(self.pool, self.run, rank, stream, before))

    def text(self, rank: int) -> str | None:
        """Return the repr of a rank's value; None if it fails or takes too long."""
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
        """Keep the values on the ranks; return a function that releases them."""
        held = self.pool.held
        held[self.run] = held.get(self.run, 0) + 1
        there = loop().loop

        def let_go() -> None:
            # May run as a finaliser at any point: it takes no lock.
            with contextlib.suppress(RuntimeError):
                there.call_soon_threadsafe(self._let_go)

        return let_go

    def _let_go(self) -> None:
        left = self.pool.held.pop(self.run, 0) - 1
        if left > 0:
            self.pool.held[self.run] = left
        elif self.pool.state == "ready" and self.pool.shape == self.shape:
            _left.start(self._release())

    async def _release(self) -> None:
        for node in sorted({rank // self.pool.spec.ranks_per_node for rank in self.ranks}):
            with contextlib.suppress(Exception):  # newer values evict it
                await self.pool.control.ask(rpc.RELEASE_VALUE, [node], run=self.run, ranks=list(self.ranks))


def value_in(fetched: FetchedValue) -> Any:
    """Return the fetched value, or its `RemoteRepr`."""
    if fetched.unpicklable or fetched.path is None:
        return fetched.stand_in(fetched.unpicklable)
    try:
        return load(fetched)
    except Exception as error:
        return fetched.stand_in(not_rebuilt(error))


def not_rebuilt(error: Exception) -> str:
    """Return why a fetched value could not be unpickled."""
    return f"it could not be rebuilt in the notebook: {type(error).__name__}: {error}"


def fetch(
    pool: ValuesContext,
    ranks: Iterable[int],
    content: Mapping[str, Any],
    what: str,
    listener: Listener = ignore,
    tick: Callable[[], None] = no_tick,
    check: Callable[[Mapping[int, FetchedValue]], None] = lambda found: None,
) -> dict[int, FetchedValue]:
    """Fetch values of ranks into files, which the caller loads or discards."""
    job = ValueFetch(pool, list(ranks), listener, what)
    return job.wait(job.bring(content, check), tick)


__all__ = [
    "FetchedValue",
    "LazyValues",
    "ValueFetch",
    "ViewFactory",
    "discard",
    "fetch",
    "load",
    "not_rebuilt",
    "unshown",
    "value_in",
]
