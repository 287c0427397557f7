"""Parts of pools on other machines, recorded until they have ended.

A row is a host's part of a pool: how to reach its machine, and its folders there. With it, a later process finds and
ends what a killed notebook has left, or what was unreachable at its pool's end. No row has a secret.
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

from ...errors import PoolError, SkyError, SpecError
from ...machines import remote_cleanup
from ...util.background_tasks import map_all
from ...util.text import first_line
from . import folder_removal

if TYPE_CHECKING:
    from ...machines.ssh.target import Target
    from ...machines.ssh.types import Prompts
    from ...spec.pool_spec import PoolSpec
    from .registry import Registry

# Created on first use, like the table of phases.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS traces (pool TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL, "
    "blobs TEXT NOT NULL, target TEXT NOT NULL, lease REAL NOT NULL, noted REAL NOT NULL, PRIMARY KEY (pool, folder))"
)
_COLUMNS = "pool, name, folder, blobs, target, lease"
# A part that was unreachable this long after its pool's end has ended by its lease, or with its machine.
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
        Its folders on its machine.
    target : str
        How to reach the machine: JSON of the arguments of `targets.resolve`.
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
        """The name of its machine, as the user gave it."""
        found = _facts(self.target).get("name")
        return found if isinstance(found, str) and found.isprintable() else "a host"

    @property
    def script(self) -> str:
        """The shell script that ends it."""
        return remote_cleanup.script(self.pool, [self.folder, self.blobs])

    def reach(self) -> Target:
        """Return its machine's target; raise SpecError for a bad row."""
        from ...machines.ssh.resolve_target import resolve

        facts = _facts(self.target)
        user, port, jump, keys = (facts.get(name) for name in ("user", "port", "jump", "keys"))
        good = all(text is None or isinstance(text, str) for text in (user, jump)) and isinstance(keys, list)
        if not good or not all(isinstance(key, str) for key in keys or ()) or not isinstance(port, (int, type(None))):
            raise SpecError("the registry does not say how the host is reached")
        return resolve(self.host, user=user, port=port, keys=tuple(keys or ()), jump=jump)


class Traces:
    """Parts of one pool on other machines; made with it.

    Parameters
    ----------
    registry : Registry
        The registry.
    pool : str
        The pool's id.
    spec : PoolSpec, optional
        Spec of the pool; only needed for `note`.
    """

    def __init__(self, registry: Registry, pool: str, spec: PoolSpec | None = None) -> None:
        self._registry, self.pool = registry, pool
        self._name, self._lease = ("", 0.0) if spec is None else (spec.name, spec.lease or 0.0)
        provider = None if spec is None else spec.provider
        self._how = {name: getattr(provider, name, None) for name in ("user", "port", "jump")}
        # A provider without keys has no SSH hosts, and `RemotePart.reach` refuses its parts.
        keys = getattr(provider, "key", None)
        self._how["keys"] = None if keys is None else list(keys)

    def note(self, host: str, folder: str, blobs: str) -> RemotePart:
        """Record a part before it is made; raise PoolError if that fails."""
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
        """Delete the record of a part that was seen to have ended."""
        with contextlib.suppress(PoolError):
            forget(self._registry, self.pool, folder)

    def left(self) -> list[RemotePart]:
        """Return the parts that could not be confirmed to have ended."""
        with contextlib.suppress(PoolError):
            return [trace for trace in _read(self._registry) if trace.pool == self.pool]
        return []


def orphans(registry: Registry) -> list[RemotePart]:
    """Return the parts of pools that have ended or are abandoned.

    Records of parts that must have ended by themselves are deleted.
    """
    try:
        found = _read(registry)
        # Pools of other machines that were not heard of for long are not listed, and may live.
        alive = registry.unended() - {row.id for row in registry.pools() if row.unfinished} if found else set()
        left = [trace for trace in found if trace.pool not in alive]
        old = _old(registry, left)
        for trace in old:
            forget_ended(registry, trace)
        return [trace for trace in left if trace not in old]
    except PoolError:
        return []


def of(registry: Registry, pool: str) -> list[RemotePart]:
    """Return the recorded parts of a pool."""
    return [trace for trace in _read(registry) if trace.pool == pool]


def end(
    registry: Registry, traces: Iterable[RemotePart], prompts: Prompts | None = None
) -> tuple[list[RemotePart], dict[str, str]]:
    """End what pools have left on other machines, in parallel.

    Returns the parts that were ended, and for other hosts the reason.
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
    """Return the names of the hosts, for a message."""
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
    """Return whether a row is valid: its values become part of a script."""
    *texts, lease = row
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
        return False
    pool, _, folder, blobs, _ = texts
    named = [path for path in (folder, blobs) if f"/sky-{pool}-" in path and path.startswith("/") and ".." not in path]
    return bool(_POOL.match(pool)) and len(named) == 2 and isinstance(lease, (int, float))


def _old(registry: Registry, traces: Sequence[RemotePart]) -> list[RemotePart]:
    if not traces:
        return []
    with registry.connection() as connection:
        rows = connection.execute("SELECT id, coalesce(ended, 0) FROM pools WHERE state = 'ended'").fetchall()
    ended = {id: when for id, when in rows if isinstance(when, (int, float))}
    now = time.time()
    return [one for one in traces if now - ended.get(one.pool, now) > max(one.lease, _FORGOTTEN)]


def forget(registry: Registry, pool: str, folder: str) -> None:
    """Delete the record of a part that was seen to have ended."""
    with registry.transaction() as connection:
        connection.execute("DELETE FROM traces WHERE pool = ? AND folder = ?", (pool, folder))


def forget_ended(registry: Registry, trace: RemotePart) -> None:
    """Delete a part's record; with the last, the pool's folders here."""
    forget(registry, trace.pool, trace.folder)
    if not of(registry, trace.pool):
        # A killed link has left its folder on this machine.
        folder_removal.remove(trace.pool, ())


def _facts(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


__all__ = ["RemotePart", "Traces", "end", "forget", "forget_ended", "hosts_of", "of", "orphans"]
