"""Read the registry's rows as values: one that a damaged file holds is left out, and harms no other."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...util import process_identity
from ...util.validate import is_number, is_whole
from ..base.run_titles import title_of

MAX_CODE = 10_000
MAX_RANKS = 1 << 16
_MAX_TEXT = 256
_MAX_WHOLE = (1 << 31) - 1  # no process has a larger number
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
        and which processes see them (`PidNamespace.text`).
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
        host = process_identity.ProcessIdentity(self.host_pid, self.host_started)
        return process_identity.look(
            host, process_identity.PidNamespace.read(self.machine, self.machine_place), self.heard
        )

    @property
    def _owner_seen(self) -> bool | None:
        owner = process_identity.ProcessIdentity(self.owner, self.owner_started)
        return process_identity.look(
            owner, process_identity.PidNamespace.read(self.owner_host, self.owner_place), self.heard
        )

    @property
    def is_here(self) -> bool:
        """Whether this process sees which of its local processes live; else it is not the one to judge the pool."""
        return self._host_seen is not None

    @property
    def is_beside(self) -> bool:
        """Whether it is on this machine, and its processes are not seen from here all the same."""
        boot = process_identity.PidNamespace.read(self.machine, self.machine_place).boot
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
        place, here = process_identity.PidNamespace.read(self.machine, self.machine_place), process_identity.here()
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
    """Read a pool from the columns that `POOL_COLUMNS` names; raise `BadRow` where one holds what it may not."""
    return PoolRow(**_parsed(PoolRow, values))


def run_row(values: Sequence[Any]) -> RunRow:
    """Read a run from the columns that `RUN_COLUMNS` names; raise `BadRow` where one holds what it may not."""
    return RunRow(**_parsed(RunRow, values))


def clock(moment: float) -> str:
    """A time of the last day as ``12:03``, another with its date."""
    form = "%H:%M" if abs(time.time() - moment) < 86_400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(moment))


def _require(good: bool) -> None:
    if not good:
        raise ValueError


def _text(value: Any) -> str:
    # What is not printable could steer a terminal.
    _require(isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable())
    return str(value)


def _id(value: Any) -> str:
    _require(bool(_ID.match(_text(value))))
    return str(value)


def _code(value: Any) -> str:
    _require(isinstance(value, str))
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value[:MAX_CODE])


def _whole(value: Any) -> int:
    _require(is_whole(value, 0, _MAX_WHOLE))
    return int(value)


def _count(value: Any) -> int:
    _require(value != 0)
    return _whole(value)


def _moment(value: Any) -> float:
    _require(is_number(value, 0, _MAX_TIME))
    return float(value)


def _folders(value: Any) -> tuple[str, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except RecursionError:
        raise ValueError from None
    _require(isinstance(found, list) and all(isinstance(item, str) for item in found))
    return tuple(found or ())


def _ranks(value: Any) -> tuple[int, ...]:
    _require(isinstance(value, str))
    found: list[int] = []
    for part in value.split(",") if value else ():
        _require(bool(_RANGES.match(part)))
        low, _, high = part.partition("-")
        ranks = range(int(low), int(high or low) + 1)
        _require(0 < len(ranks) <= MAX_RANKS - len(found))
        found.extend(ranks)
    return tuple(found)


# The readers of columns: by the name of one, else by its field's type.
_BY_NAME: dict[str, Callable[[Any], Any]] = {
    "id": _id,
    "pool": _id,
    "nodes": _count,
    "code": _code,
    "folders": _folders,
    "ranks": _ranks,
}
_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _whole,
    "bool": lambda value: bool(_whole(value)),
    "float": _moment,
    "float | None": lambda value: None if value is None else _moment(value),
}
POOL_COLUMNS = ", ".join(field.name for field in fields(PoolRow))
RUN_COLUMNS = (
    ", ".join(field.name for field in fields(RunRow))
    .replace("code, ", f"substr(code, 1, {MAX_CODE + 1}), ")
    .replace("pool_name", "coalesce((SELECT name FROM pools WHERE pools.id = runs.pool), '')")
)


def _parsed(kind: type[PoolRow] | type[RunRow], values: Sequence[Any]) -> dict[str, Any]:
    found = {}
    for field, value in zip(fields(kind), values, strict=True):
        try:
            found[field.name] = (_BY_NAME.get(field.name) or _BY_TYPE[str(field.type)])(value)
        except ValueError:
            raise BadRow(field.name) from None
    return found
