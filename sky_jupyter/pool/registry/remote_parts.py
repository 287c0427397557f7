"""What pools have on other machines, in the registry from before it is made until it is seen to have ended.

A row is a host's part of a pool: how its machine is reached, and where its folders are there. With it, what a
notebook that was killed left there, or what could not be reached when its pool was ended, is found and
ended by whoever comes next. No row holds a secret.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import PoolError, SkyError, SpecError, first_line
from ...machines import remote_cleanup
from ...util.background_tasks import map_all
from . import folders

if TYPE_CHECKING:
    from ...machines.ssh.target import Target
    from ...machines.ssh.types import Prompts
    from ...spec.pool_spec import PoolSpec
    from .registry import Registry

# Made when it is first needed, as that of phases.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS traces (pool TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL, "
    "blobs TEXT NOT NULL, target TEXT NOT NULL, lease REAL NOT NULL, noted REAL NOT NULL, PRIMARY KEY (pool, folder))"
)
_COLUMNS = "pool, name, folder, blobs, target, lease"
# What has not been reached for so long after its pool's end has ended by its lease, or with its machine.
_FORGOTTEN = 86_400.0
_MOST = 4096
_MAX_TEXT = 1 << 16
_BESIDE = 16
_POOL = re.compile(r"[0-9a-f]{8}\Z")


@dataclass(frozen=True)
class RemotePart:
    """A host's part of a pool.

    Parameters
    ----------
    pool, name : str
        The pool's id and name.
    folder, blobs : str
        Where it is on its machine.
    target : str
        How that is reached, as JSON: what `targets.resolve` takes.
    lease : float
        Seconds after which it ends by itself.
    """

    pool: str
    name: str
    folder: str
    blobs: str
    target: str
    lease: float

    @property
    def host(self) -> str:
        """Its machine, as the user calls it."""
        found = _facts(self.target).get("name")
        return found if isinstance(found, str) and found.isprintable() else "a host"

    @property
    def script(self) -> str:
        """What ends it there."""
        return remote_cleanup.script(self.pool, [self.folder, self.blobs])

    def reach(self) -> Target:
        """How its machine is reached, by the SSH configuration of today; SpecError where the row does not say it."""
        from ...machines.ssh.target import resolve

        facts = _facts(self.target)
        user, port, jump, keys = (facts.get(name) for name in ("user", "port", "jump", "keys"))
        good = all(text is None or isinstance(text, str) for text in (user, jump)) and isinstance(keys, list)
        if not good or not all(isinstance(key, str) for key in keys or ()) or not isinstance(port, (int, type(None))):
            raise SpecError("the registry does not say how the host is reached")
        return resolve(self.host, user=user, port=port, keys=tuple(keys or ()), jump=jump)


class Traces:
    """Those of one pool; made with it.

    Parameters
    ----------
    registry : Registry
        The pool's.
    pool : str
        Its id.
    spec : PoolSpec, optional
        How its machines are reached, and when its parts end by themselves; not needed where nothing is noted.
    """

    def __init__(self, registry: Registry, pool: str, spec: PoolSpec | None = None) -> None:
        self._registry, self.pool = registry, pool
        self._name, self._lease = ("", 0.0) if spec is None else (spec.name, spec.lease or 0.0)
        provider = None if spec is None else spec.provider
        self._how = {name: getattr(provider, name, None) for name in ("user", "port", "jump")}
        # What has no keys to log in with is no host, and `RemotePart.reach` refuses it.
        keys = getattr(provider, "key", None)
        self._how["keys"] = None if keys is None else list(keys)

    def note(self, host: str, folder: str, blobs: str) -> RemotePart:
        """Something is about to be made on a machine, which is named; PoolError where that cannot be recorded."""
        facts = json.dumps({"name": host, **self._how})
        trace = RemotePart(self.pool, self._name, folder, blobs, facts, self._lease)
        with self._registry.transaction() as connection:
            connection.execute(_TABLE)
            connection.execute(
                f"INSERT OR REPLACE INTO traces ({_COLUMNS}, noted) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.pool, self._name, folder, blobs, facts, self._lease, time.time()),
            )
        return trace

    def forget(self, folder: str) -> None:
        """It was seen that nothing of it is left there."""
        with contextlib.suppress(PoolError):
            forget(self._registry, self.pool, folder)

    def left(self) -> list[RemotePart]:
        """Those that were not seen to have ended."""
        with contextlib.suppress(PoolError):
            return [trace for trace in _read(self._registry) if trace.pool == self.pool]
        return []


def orphans(registry: Registry) -> list[RemotePart]:
    """What is left of pools that have ended, or whose notebook died before they were ready or while they were ended.

    What has ended by itself since is forgotten.
    """
    try:
        found = _read(registry)
        alive = {row.id for row in registry.pools() if not row.unfinished} if found else set()
        left = [trace for trace in found if trace.pool not in alive]
        old = _old(registry, left)
        for trace in old:
            forget_ended(registry, trace)
        return [trace for trace in left if trace not in old]
    except PoolError:
        return []


def of(registry: Registry, pool: str) -> list[RemotePart]:
    """What there may be of a pool on other machines."""
    return [trace for trace in _read(registry) if trace.pool == pool]


def end(
    registry: Registry, traces: Iterable[RemotePart], prompts: Prompts | None = None
) -> tuple[list[RemotePart], dict[str, str]]:
    """End what pools have left on other machines, which are connected to side by side.

    Returns
    -------
    tuple
        What was ended, and of hosts where it could not be, why.
    """
    from ...machines.ssh.machine import SSHMachine
    from ...machines.ssh.session import Access

    access = Access.of(False, prompts)
    failed: dict[str, str] = {}
    hosts: dict[str, list[RemotePart]] = {}
    for trace in traces:
        hosts.setdefault(trace.target, []).append(trace)

    def on_one(there: Sequence[RemotePart]) -> list[RemotePart]:
        ended = []
        try:
            machine = SSHMachine.connect(there[0].reach(), access)
            try:
                for trace in there:
                    remote_cleanup.run(machine, trace.script)
                    forget_ended(registry, trace)
                    ended.append(trace)
            finally:
                machine.close()
        except (SkyError, OSError, EOFError, TimeoutError) as error:
            failed[there[0].host] = first_line(error).removeprefix(f"{there[0].host}: ")
        return ended

    done = map_all(on_one, hosts.values(), "sky-traces", most=_BESIDE)
    return [trace for ended in done for trace in ended], failed


def hosts_of(traces: Iterable[RemotePart]) -> str:
    """The hosts, for a message."""
    return ", ".join(dict.fromkeys(trace.host for trace in traces))


def _read(registry: Registry) -> list[RemotePart]:
    with registry.connection() as connection:
        try:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM traces ORDER BY rowid LIMIT ?", (_MOST,)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
    return [RemotePart(*row) for row in rows if _is_sound(row)]


def _is_sound(row: Sequence[Any]) -> bool:
    """Whether a row is one of ours: what is in it becomes part of a script."""
    *texts, lease = row
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
        return False
    pool, _, folder, blobs, _ = texts
    named = [path for path in (folder, blobs) if f"/sky-{pool}-" in path and path.startswith("/") and ".." not in path]
    return bool(_POOL.match(pool)) and len(named) == 2 and isinstance(lease, (int, float))


def _old(registry: Registry, traces: Sequence[RemotePart]) -> list[RemotePart]:
    with registry.connection() as connection:
        rows = connection.execute("SELECT id, coalesce(ended, 0) FROM pools WHERE state = 'ended'").fetchall()
    ended = {id: when for id, when in rows if isinstance(when, (int, float))}
    now = time.time()
    return [one for one in traces if now - ended.get(one.pool, now) > max(one.lease, _FORGOTTEN)]


def forget(registry: Registry, pool: str, folder: str) -> None:
    """It was seen that nothing of a host's part of a pool is left there."""
    with registry.transaction() as connection:
        connection.execute("DELETE FROM traces WHERE pool = ? AND folder = ?", (pool, folder))


def forget_ended(registry: Registry, trace: RemotePart) -> None:
    """Forget a part of a pool that is over; with its last part goes what the pool has on this machine."""
    forget(registry, trace.pool, trace.folder)
    if not of(registry, trace.pool):
        # A link that was killed has left its folder here.
        folders.remove(trace.pool, ())


def _facts(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


__all__ = ["RemotePart", "Traces", "end", "forget", "forget_ended", "hosts_of", "of", "orphans"]
