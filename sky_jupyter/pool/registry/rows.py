"""The registry's rows as values. A file is input from outside: each column is read with limits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...util import process_identity
from ..base.run_titles import title_of

MAX_CODE = 10_000
MAX_RANKS = 1 << 16
_MAX_FOLDERS = 1000
_MAX_PID = (1 << 31) - 1
_MAX_WHOLE = 1 << 53
_MAX_TIME = 1e11
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_RANGES = re.compile(r"[0-9]{1,7}(-[0-9]{1,7})?\Z")


@dataclass(frozen=True)
class PoolRow:
    """A pool as the registry knows it.

    Attributes
    ----------
    owner : int
        The process that manages it; 0 for nobody.
    generation : int
        How many owners it has had: orders with a smaller number are from one that lost it.
    machine, machine_place : str
        Where its local processes are, and ``host_pid`` among them (0 while there is none): the host's name,
        and which processes see them (`identity.Place.text`).
    owner_host, owner_place : str
        The same of the owner.
    """

    id: str
    name: str
    provider: str
    nodes: int
    state: str
    folders: tuple[str, ...]
    owner: int
    owner_started: float
    keep: bool
    began: float
    generation: int
    owner_name: str
    owner_host: str
    owner_since: float
    machine: str
    host_pid: int
    host_started: float
    owner_place: str = ""
    machine_place: str = ""

    @property
    def heard(self) -> float:
        """When it was last heard of, by the time of day."""
        return max(self.began, self.owner_since)

    @property
    def _host_seen(self) -> bool | None:
        host = process_identity.Process(self.host_pid, self.host_started)
        return process_identity.look(host, process_identity.Place.read(self.machine, self.machine_place), self.heard)

    @property
    def _owner_seen(self) -> bool | None:
        owner = process_identity.Process(self.owner, self.owner_started)
        return process_identity.look(owner, process_identity.Place.read(self.owner_host, self.owner_place), self.heard)

    @property
    def is_here(self) -> bool:
        """Whether this process sees which of its local processes live; else it is not the one to judge the pool."""
        return self._host_seen is not None

    @property
    def is_beside(self) -> bool:
        """Whether it is on this machine, and its processes are not seen from here all the same."""
        boot = process_identity.Place.read(self.machine, self.machine_place).boot
        return not self.is_here and boot != "" and boot == process_identity.here().boot

    @property
    def host_lives(self) -> bool:
        """Whether the process at the pool's root is seen to live."""
        return self._host_seen is True

    @property
    def owner_lives(self) -> bool:
        """Whether somebody manages it; who cannot be seen from here is believed to live."""
        return self.owner != 0 and self._owner_seen is not False

    @property
    def outlives(self) -> bool:
        """Whether it is one that a later notebook takes up: kept, or left by its own on other machines."""
        left = self.provider != "local" and self.state == "ready" and not self.owner_lives
        return (self.keep or left) and not self.unfinished

    @property
    def unfinished(self) -> bool:
        """Whether its owner died before it was ready, or while it was ended: nobody can use what there is of it."""
        begun = self.provider != "local" and self.state in ("starting", "ending")
        return begun and self.is_here and not self.owner_lives

    @property
    def is_mine(self) -> bool:
        """Whether this process manages it."""
        return (self.owner, self.owner_started) == process_identity.this() and self._owner_seen is True

    @property
    def where(self) -> str:
        """Where it is, of one that is not here, for a message."""
        place, here = process_identity.Place.read(self.machine, self.machine_place), process_identity.here()
        if place.boot and place.boot == here.boot:
            named = "" if place.host == here.host else f" ({place.host})"
            return f"in another container{named} of this machine"
        if place.host == here.host:
            return f"in another container, or on another machine, that is named {place.host} too"
        return f"on machine {self.machine}"

    @property
    def who(self) -> str:
        """Its owner, for a message."""
        if not self.owner:
            return "nobody"
        host = f" on host {self.owner_host}" if self.owner_host else ""
        since = f", since {clock(self.owner_since)}" if self.owner_since else ""
        return f"{self.owner_name or 'a notebook'} (process {self.owner}{host}{since})"


@dataclass(frozen=True)
class RunRow:
    """A run as the registry knows it; no ranks stand for all of the pool's.

    Attributes
    ----------
    pool, pool_name : str
        The pool's id, and its name where the registry still has it.
    state : str
        ``running``, ``ok``, ``failed``, ``interrupted``, ``timed out``, or ``lost`` where the pool ended before
        anybody saw the run's end.
    cell : int
        Its cell's number, as in ``In[cell]``; 0 where it is of none.
    """

    id: str
    pool: str
    state: str
    code: str
    began: float
    elapsed: float | None
    ranks: tuple[int, ...]
    cell: int
    pool_name: str

    @property
    def title(self) -> str:
        """Its code in a line."""
        return title_of(self.code)


class BadRow(ValueError):
    """A row that cannot be read; the message is the column."""


def pool_row(values: Sequence[Any]) -> PoolRow:
    """A pool, from the columns that `POOL_COLUMNS` names; `BadRow` where one holds what it may not."""
    return PoolRow(**_parsed(_POOL, values))


def run_row(values: Sequence[Any]) -> RunRow:
    """A run, from the columns that `RUN_COLUMNS` names; `BadRow` where one holds what it may not."""
    return RunRow(**_parsed(_RUN, values))


def ranges(ranks: Sequence[int]) -> str:
    """Ranks as they are written down: ``"0-3,5"``."""
    pieces: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pieces)


def clock(moment: float) -> str:
    """A time of the last day as ``12:03``, another with its date."""
    form = "%H:%M" if abs(time.time() - moment) < 86_400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(moment))


def _id(value: Any) -> str:
    text = _text(64)(value)
    if not _ID.match(text):
        raise ValueError
    return text


def _text(limit: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        # What is not printable could steer a terminal.
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise ValueError
        return value

    return read


def _code(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    shown = value[:MAX_CODE]
    return shown if shown.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in shown)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return read


def _moment(value: Any) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < _MAX_TIME:
        raise ValueError
    return float(value)


def _elapsed(value: Any) -> float | None:
    return None if value is None else _moment(value)


def _keep(value: Any) -> bool:
    return bool(_whole(0, 1)(value))


def _folders(value: Any) -> tuple[str, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except RecursionError:
        raise ValueError from None
    if not isinstance(found, list) or len(found) > _MAX_FOLDERS or not all(isinstance(item, str) for item in found):
        raise ValueError
    return tuple(found)


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, str):
        raise ValueError
    found: list[int] = []
    for part in value.split(",") if value else ():
        if not _RANGES.match(part):
            raise ValueError
        low, _, high = part.partition("-")
        ranks = range(int(low), int(high or low) + 1)
        if not ranks or len(found) + len(ranks) > MAX_RANKS:
            raise ValueError
        found.extend(ranks)
    return tuple(found)


# Each column's reader, and of text how much is fetched at all.
_Columns = Mapping[str, tuple[Callable[[Any], Any], int]]
_POOL: _Columns = {
    "id": (_id, 64),
    "name": (_text(64), 64),
    "provider": (_text(64), 64),
    "nodes": (_whole(1, 1 << 20), 0),
    "state": (_text(32), 32),
    "folders": (_folders, 1 << 20),
    "owner": (_whole(0, _MAX_PID), 0),
    "owner_started": (_moment, 0),
    "keep": (_keep, 0),
    "began": (_moment, 0),
    "generation": (_whole(0, _MAX_WHOLE), 0),
    "owner_name": (_text(256), 256),
    "owner_host": (_text(256), 256),
    "owner_since": (_moment, 0),
    "machine": (_text(256), 256),
    "host_pid": (_whole(0, _MAX_PID), 0),
    "host_started": (_moment, 0),
    "owner_place": (_text(256), 256),
    "machine_place": (_text(256), 256),
}
_RUN: _Columns = {
    "id": (_id, 64),
    "pool": (_id, 64),
    "state": (_text(32), 32),
    "code": (_code, MAX_CODE),
    "began": (_moment, 0),
    "elapsed": (_elapsed, 0),
    "ranks": (_ranks, 1 << 16),
    "cell": (_whole(0, _MAX_WHOLE), 0),
    "pool_name": (_text(64), 64),
}
_RUN_POOL = "(SELECT name FROM pools WHERE pools.id = runs.pool)"


def _select(columns: _Columns) -> str:
    return ", ".join(f"substr({name}, 1, {limit + 1})" if limit else name for name, (_, limit) in columns.items())


POOL_COLUMNS = _select(_POOL)
RUN_COLUMNS = _select(_RUN).replace("substr(pool_name", f"substr(coalesce({_RUN_POOL}, '')")


def _parsed(columns: _Columns, values: Sequence[Any]) -> dict[str, Any]:
    found = {}
    for (name, (read, _)), value in zip(columns.items(), values, strict=True):
        try:
            found[name] = read(value)
        except ValueError:
            raise BadRow(name) from None
    return found
