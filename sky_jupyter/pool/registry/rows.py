"""Rows of the registry, validated on reading: a damaged one is left out."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...util import process_identity
from ...util.validate import is_number, is_whole
from ..base.run_titles import title_of
from ..base.timeouts import TIMEOUTS

MAX_CODE = 10_000
MAX_RANKS = 1 << 16
_MAX_TEXT = 256
_LOOK = TIMEOUTS.polls.end
_MAX_WHOLE = (1 << 31) - 1  # no process has a larger number
_MAX_TIME = 1e11
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_RANGES = re.compile(r"[0-9]{1,7}(-[0-9]{1,7})?\Z")


@dataclass(frozen=True)
class PoolRow:
    """Pool in the registry.

    Attributes
    ----------
    owner : int
        Pid of the process that manages it; 0 for none.
    generation : int
        Number of owners so far, a fencing token: requests with a smaller one are from an earlier owner.
    machine, machine_place : str
        Where its local processes are, with ``host_pid`` (0 while there is none): the machine's name, and the namespace
        in which they are visible (`PidNamespace.text`).
    owner_host, owner_place : str
        The same for the owner.
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
    def is_local(self) -> bool:
        """Whether its nodes are processes of its manager's machine, ended with the host."""
        return self.provider == "local"

    @property
    def may_outlive(self) -> bool:
        """Whether it can go on without its manager; `outlives`: whether it does now."""
        return self.keep or not self.is_local

    @property
    def heard(self) -> float:
        """The Unix time when it began or when its owner took it, the later one."""
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
        """Whether its local processes are visible from here."""
        return self._host_seen is not None

    @property
    def is_beside(self) -> bool:
        """Whether it is in another container of this machine."""
        boot = process_identity.PidNamespace.read(self.machine, self.machine_place).boot
        return not self.is_here and boot != "" and boot == process_identity.here().boot

    @property
    def host_lives(self) -> bool:
        """Whether the pool's root process is seen to be alive."""
        return self._host_seen is True

    def host_ends_within(self, seconds: float) -> bool:
        """Wait for the end of the pool's root process; return False after ``seconds``."""
        until = time.monotonic() + seconds
        while self.host_lives and time.monotonic() < until:
            time.sleep(_LOOK)
        return not self.host_lives

    @property
    def owner_lives(self) -> bool:
        """Whether its manager is alive, or cannot be seen."""
        return self.owner != 0 and self._owner_seen is not False

    @property
    def outlives(self) -> bool:
        """Whether a later notebook can attach to it."""
        left = not self.is_local and self.state == "ready" and not self.owner_lives
        # A local pool whose owner died during its start or end is not continued.
        cut = self.is_local and self.state in ("starting", "ending") and not self.owner_lives
        return (self.keep or left) and not (cut or self.unfinished) and self.state != "stopped"

    @property
    def unfinished(self) -> bool:
        """Whether it is remote, and its owner died during its start or end."""
        begun = not self.is_local and self.state in ("starting", "ending")
        return begun and self.is_here and not self.owner_lives

    @property
    def is_mine(self) -> bool:
        """Whether this process manages it."""
        return (self.owner, self.owner_started) == process_identity.this() and self._owner_seen is True

    @property
    def where(self) -> str:
        """Its place, for messages on a pool that is not here."""
        place, here = process_identity.PidNamespace.read(self.machine, self.machine_place), process_identity.here()
        if place.boot and place.boot == here.boot:
            named = "" if place.host == here.host else f" ({place.host})"
            return f"in another container{named} of this machine"
        if place.host == here.host:
            return f"in another container, or on another machine, that is named {place.host} too"
        return f"on machine {self.machine}"

    @property
    def who(self) -> str:
        """Its owner, for messages."""
        if not self.owner:
            return "nobody"
        host = f" on host {self.owner_host}" if self.owner_host else ""
        since = f", since {clock(self.owner_since)}" if self.owner_since else ""
        return f"{self.owner_name or 'a notebook'} (process {self.owner}{host}{since})"


@dataclass(frozen=True)
class RunRow:
    """Run in the registry; empty ``ranks`` mean all of the pool's.

    Attributes
    ----------
    pool, pool_name : str
        The pool's id, and its name if the registry still has it.
    state : str
        ``running``, ``ok``, ``failed``, ``interrupted``, ``timed out``, or ``lost`` if the pool ended first.
    cell : int
        Number of its cell, as in ``In[cell]``; 0 if it is of none.
    notebook : str
        Name of the notebook, script or program that began it; empty if it is not known.
    """

    id: str
    pool: str
    state: str
    code: str
    began: float
    elapsed: float | None
    ranks: tuple[int, ...]
    cell: int
    notebook: str
    pool_name: str

    @property
    def title(self) -> str:
        """Its code in one line."""
        return title_of(self.code)


def notebooks(runs: Iterable[RunRow]) -> dict[str, str]:
    """Return short names of these runs' notebooks; empty unless several are known."""
    found = dict.fromkeys(run.notebook for run in runs)
    if len(found.keys() - {""}) < 2:
        return {}
    paths = {notebook: notebook.removeprefix("notebook ") for notebook in found}
    ends = Counter(path.rpartition("/")[2] for path in paths.values())
    return {one: end if ends[end := path.rpartition("/")[2]] == 1 else path for one, path in paths.items()}


class BadRow(ValueError):
    """Error of a row with an invalid value; the message is the column."""


def pool_row(values: Sequence[Any]) -> PoolRow:
    """Build a pool from `POOL_COLUMNS`; raise `BadRow` on a bad value."""
    return PoolRow(**_parsed(PoolRow, values))


def run_row(values: Sequence[Any]) -> RunRow:
    """Build a run from `RUN_COLUMNS`; raise `BadRow` on a bad value."""
    return RunRow(**_parsed(RunRow, values))


def clock(moment: float) -> str:
    """Return a time of the last day as ``12:03``, another with its date."""
    form = "%H:%M" if abs(time.time() - moment) < 86_400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(moment))


def _require(good: bool) -> None:
    if not good:
        raise ValueError


def _text(value: Any) -> str:
    # Unprintable characters could be terminal control sequences.
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


# Parsers of columns: by name, else by the field's type.
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
