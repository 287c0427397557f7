"""A cloud of the tests' own: a provider whose machines are rows of a file that processes share, and its faults.

    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    cloud.plan("create", "lost")          # the next call that makes machines makes them, and its answer is lost
    Pool(PoolSpec(provider=cloud, nodes=2)).start()
    cloud.machines()

It behaves as clouds do: a token makes the same machines once in each zone; what was made is listed a moment
later; one unknown id refuses a whole call to end machines; machines are seen ending before they have ended.
A light machine is a row and nothing else: nobody can connect to it. Where the cloud is given hosts, each machine
is one of them (`tests.hosts`), which is reached by SSH and loses its power when the machine ends:

    cloud = Cloud(str(tmp_path / "cloud.sqlite"), hosts=("host0", "host1", "host2"))
    with cloud.powered(world): ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sky_jupyter.errors import LoginRefused, MachineError, NoCapacity, OrderSpent, ProvisionError, SpecError, Unanswered
from sky_jupyter.machines.power_watchdog import POWER_FILE
from sky_jupyter.node.host.power_file import GRACE
from sky_jupyter.providers import SSH, provider_registry
from sky_jupyter.providers.base import Charge, ConnectionSession, MachineRecord, Offer, Order
from sky_jupyter.providers.machine_costs import by_the_hour
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.remote import links
from tests.providers.cloud_power import Hypervisor

if TYPE_CHECKING:
    from tests.hosts.world import World

# What the provider is made of where it is made without arguments, as `--provider cloud` does.
STORE, HOSTS, HOURLY = "SKY_TEST_CLOUD", "SKY_TEST_CLOUD_HOSTS", "SKY_TEST_CLOUD_HOURLY"
# Dollars an hour of the disk of a stopped machine.
DISK = 0.01
ZONES = ("here-a", "here-b", "there-a")
# What can happen to a call; each is planned by `Cloud.plan`.
FAULTS = {
    "create": (
        *("error", "throttled", "lost", "half", "half-lost", "refused", "quota", "hang", "late", "vanish"),
        *("interrupt-before", "interrupt-after", "kill-before", "kill-after", "denied"),
    ),
    "list": ("error", "hang", "interrupt-before", "kill-before", "vanish"),
    "describe": ("error",),
    "destroy": ("error", "lost", "unknown", "half-lost", "kill-before", "kill-after", "interrupt-after"),
    "connect": (
        *("refused", "kill-before", "interrupt-before", "vanish"),
        *("kill-link", "kill-link-starting", "kill-link-soon", "kill-link-later"),
    ),
}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS machines (
    id TEXT PRIMARY KEY, pool TEXT, token TEXT, region TEXT, zone TEXT, kind TEXT, made REAL, shown REAL,
    until REAL, owner TEXT, ending REAL, address TEXT, name TEXT, stopped INTEGER DEFAULT 0,
    remains INTEGER DEFAULT 0, queued INTEGER DEFAULT 0, incarnation INTEGER DEFAULT 1, reason TEXT DEFAULT '');
CREATE TABLE IF NOT EXISTS queue (free INTEGER, reason TEXT);
CREATE TABLE IF NOT EXISTS faults (number INTEGER PRIMARY KEY, call TEXT, fault TEXT, skip INTEGER);
CREATE TABLE IF NOT EXISTS consoles (id TEXT, previous INTEGER, text TEXT);
CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY, pool TEXT, call TEXT, said TEXT);
"""
# How long a call takes that hangs, and how long a machine is seen ending before it is gone.
_HANG, _ENDING = 1.2, 0.05

# When a link is killed that has come up: while its machines are connected to, and as it ends or its machines do.
_DEATHS = {"kill-link": 0.0, "kill-link-soon": 0.05, "kill-link-later": 0.15}

_worlds: dict[str, World] = {}


@provider_registry.register
@dataclass(frozen=True)
class Cloud:
    """The provider; a value, as the file has all of its state.

    Parameters
    ----------
    store : str
        The file; the one that the environment names unless given.
    zones : tuple of str
        Where machines are made; the word before the dash is the region.
    shown_after : float
        Seconds until a machine that was made is listed.
    hosts : tuple of str
        Names of hosts that its machines are; those of the environment unless given, and none for a light cloud.
    """

    kind = "cloud"
    supported_options = ("region", "max_hourly_cost")
    provisions = True
    survives_manager = True
    offline = True

    store: str = field(default_factory=lambda: os.environ[STORE])
    zones: tuple[str, ...] = ZONES
    shown_after: float = 0.03
    hosts: tuple[str, ...] = field(default_factory=lambda: tuple(os.environ.get(HOSTS, "").split()))
    # Dollars an hour of each machine; None where the cloud has no price list.
    hourly: float | None = field(default_factory=lambda: float(os.environ.get(HOURLY, "0.1")))
    visible_within: float = field(default=0.1, compare=False)
    # Whether something is left of machines that end by themselves, until they are destroyed.
    leaves: bool = False
    # What nodes ask whether their machine is taken away.
    notice: str = field(default="", compare=False)
    # Whether machines wait in a queue, which `hold` closes, and come back as `evict` and `bring_back` say.
    queues: bool = field(default=False, compare=False)

    @property
    def power_file(self) -> str:
        """Which file says until when a host stays on; a light machine has none."""
        return POWER_FILE if self.hosts else ""

    # -- the contract ------------------------------------------------------------------------------

    def account(self) -> str:
        return "somebody"

    def recipe(self) -> Mapping[str, Any]:
        return {
            "store": self.store,
            "zones": list(self.zones),
            "hosts": list(self.hosts),
            "hourly": self.hourly,
            "leaves": self.leaves,
        }

    @classmethod
    def restore(cls, recipe: Mapping[str, Any]) -> Cloud:
        about = {"hosts": tuple(recipe["hosts"]), "hourly": recipe["hourly"], "leaves": recipe["leaves"]}
        return cls(str(recipe["store"]), tuple(recipe["zones"]), **about)

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        regions: dict[str, list[str]] = {}
        for zone in self.zones:
            regions.setdefault(zone.partition("-")[0], []).append(zone)
        return [Offer("small", self.hourly, region=name, zones=tuple(zones)) for name, zones in regions.items()]

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        with self._call("create", order.pool) as fault:
            if fault == "refused":
                raise NoCapacity(f"{order.zone} has no machine")
            if fault == "quota":
                raise NoCapacity(f"{order.zone}: the quota is used up", scope="market")
            if fault == "denied":
                raise ProvisionError("you are not authorized to make machines")
            if fault == "throttled":
                raise Unanswered("too many requests")
            made = self._make(order, max(1, count // 2) if fault.startswith("half") else count)
            if fault == "vanish":
                self.vanish(made[:1])
            return made

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        with self._call("list", pool or "") as fault:
            if fault == "vanish":
                self.vanish([one.id for one in self.machines(pool) if one.is_there][:1])
            now = time.time()
            shown = self._rows("SELECT id FROM machines WHERE shown <= ?", now)
            ids = {id for (id,) in shown}
            found = [one for one in self.machines(pool) if one.id in ids]
            return [
                one for one in found if (one.state != "ended" or one.remains) and (not regions or one.region in regions)
            ]

    def forget(self, pool: str) -> None:
        """It keeps nothing of a pool."""

    def all_regions(self) -> Sequence[str]:
        return list(dict.fromkeys(zone.partition("-")[0] for zone in self.zones))

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        if self._fault("describe") == "error":
            raise ConnectionError("the connection broke before the call was sent")
        known = {one.id: one for one in self.machines()}
        return [known.get(id, MachineRecord(id, "unknown")) for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        if not ids:
            raise ProvisionError("no machines are named")
        known = {one.id: one for one in self.machines()}
        pool = known[ids[0]].pool if ids[0] in known else ""
        with self._call("destroy", pool) as fault:
            if fault == "unknown" or any(id not in known for id in ids):
                raise ProvisionError(f"one of {', '.join(ids)} is not known; nothing was ended")
            ended = ids[: len(ids) // 2] if fault.startswith("half") else ids
            self.vanish(ended)
            for id in ended:
                self._rows("UPDATE machines SET remains = 0 WHERE id = ?", id)

    def costs(self, records: Sequence[MachineRecord], at: float) -> Sequence[Charge]:
        return [
            Charge(DISK, DISK * (at - one.launched) / 3600) if one.state == "stopped" else by_the_hour([one], at)[0]
            for one in records
        ]

    def stop(self, ids: Sequence[str]) -> None:
        with self._call("stop", self._pool_of(ids)):
            for id, address, stopped in self._of(ids):
                if not stopped and address and (world := _worlds.get(self.store)):
                    next(host for host in world if host.name == address).kill()
                self._rows("UPDATE machines SET stopped = 1 WHERE id = ?", id)

    def start(self, ids: Sequence[str]) -> None:
        with self._call("start", self._pool_of(ids)) as fault:
            if fault == "refused":
                raise NoCapacity("no capacity to start what is stopped")
            for id, address, stopped in self._of(ids):
                if stopped and address and (world := _worlds.get(self.store)):
                    next(host for host in world if host.name == address).boot()
                self._rows("UPDATE machines SET stopped = 0 WHERE id = ?", id)

    def _of(self, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = self._rows("SELECT id, address, stopped FROM machines WHERE ending IS NULL")
        return [row for row in rows if row[0] in ids]

    def _pool_of(self, ids: Sequence[str]) -> str:
        return next((one.pool for one in self.machines() if one.id in ids), "")

    def console(self, id: str, *, previous: bool = False, lines: int | None = None) -> str:
        found = self._rows("SELECT text FROM consoles WHERE id = ? AND previous = ?", id, previous)
        if not found:
            raise ProvisionError(f"machine {id} has no {'earlier ' if previous else ''}log")
        return "".join("".join(text for (text,) in found).splitlines(keepends=True)[-(lines or 0) :])

    def default_nodes(self) -> int:
        return 1

    def spares(self, ids: Sequence[str]) -> None:
        """Machines are made as they are needed."""

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> Cloud:
        if add:
            raise SpecError("machines of the cloud have no names: say how many there shall be")
        return self

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Any]:
        pool = next((one.pool for one in self.machines() if one.id in ids), "")
        with self._call("connect", pool) as fault:
            if fault.startswith("kill-link"):
                _with_link_killed(session, pool, fault)
            if fault == "vanish":
                self.vanish(ids[:1])
        if self.hosts:
            names = {one.id: one.addresses[0] for one in self.machines() if one.is_there}
            if gone := [id for id in ids if id not in names]:
                raise MachineError(gone[0], "closed", "there is no such machine any more")
            ssh = SSH(hosts=[names[id] for id in ids], offline=True)
            return ssh.connect(ssh.hosts, session)
        raise LoginRefused(ids[0], "keys", "a light machine lets nobody in")

    def __str__(self) -> str:
        return "cloud"

    # -- for tests ---------------------------------------------------------------------------------

    def plan(self, call: str, fault: str, skip: int = 0) -> None:
        """Have a fault happen to the next call of a kind, or after ``skip`` of them."""
        assert fault in {**FAULTS, "start": ("error", "refused"), "stop": ("error",)}[call], fault
        self._rows("INSERT INTO faults (call, fault, skip) VALUES (?, ?, ?)", call, fault, skip)

    def say(self, id: str, text: str, *, previous: bool = False) -> None:
        """Have a machine say something in its own log."""
        self._rows("INSERT INTO consoles VALUES (?, ?, ?)", id, previous, text)

    def hold(self, reason: str, free: int = 0) -> None:
        """Have machines that are made from now on wait in the queue, beyond so many."""
        self._rows("DELETE FROM queue")
        self._rows("INSERT INTO queue VALUES (?, ?)", free, reason)

    def admit(self, ids: Sequence[str] = ()) -> None:
        """Let machines run, all by default; without a name, the queue is open again."""
        if not ids:
            self._rows("DELETE FROM queue")
        for id in ids or [one.id for one in self.machines() if one.state == "queued"]:
            self._power_on([address for _, address, _ in self._of([id])])
            self._rows("UPDATE machines SET queued = 0, incarnation = incarnation + 1 WHERE id = ?", id)

    def requeue(self, id: str, reason: str) -> None:
        """Say another reason why a machine waits."""
        self._rows("UPDATE machines SET reason = ? WHERE id = ?", reason, id)

    def evict(self, id: str, reason: str, host: str = "") -> None:
        """Take a machine away, which comes back with `admit`: without its processes, or as another host."""
        for _, address, _ in self._of([id]):
            if world := _worlds.get(self.store):
                next(one for one in world if one.name == address).kill()
            self._rows(
                "UPDATE machines SET queued = 1, reason = ?, address = ? WHERE id = ?", reason, host or address, id
            )

    def calm(self) -> None:
        """Have no more faults."""
        self._rows("DELETE FROM faults")

    def spare_the_sweeper(self) -> None:
        """Have no more planned faults that kill or interrupt whoever calls."""
        self._rows("DELETE FROM faults WHERE fault LIKE 'kill%' OR fault LIKE 'interrupt%'")

    def vanish(self, ids: Sequence[str]) -> None:
        """End machines, whoever wants that."""
        for id in ids:
            for address, ending, stopped in self._rows(
                "SELECT address, ending, stopped FROM machines WHERE id = ?", id
            ):
                for host in _worlds.get(self.store, ()) if ending is None and not stopped else ():
                    # One that was taken away has no power.
                    if host.name == address and host.pid:
                        host.kill()
            # What had ended before has left what it leaves.
            values = (self.leaves, time.time(), id)
            self._rows("UPDATE machines SET remains = ?, ending = ? WHERE id = ? AND ending IS NULL", *values)

    @contextlib.contextmanager
    def powered(self, world: World, grace: float = GRACE) -> Iterator[Cloud]:
        """Have the machines be this world's hosts; all have power again afterwards.

        A machine that nobody has used within ``grace`` seconds goes off.
        """
        _worlds[self.store] = world
        # Its file is made before two threads use it.
        self.machines()
        try:
            with Hypervisor(self, world, grace):
                yield self
        finally:
            del _worlds[self.store]
            for host in world:
                if not host.pid:
                    host.boot()

    def machines(self, pool: str | None = None) -> list[MachineRecord]:
        """All machines there ever were, as the cloud itself knows them."""
        rows = self._rows(
            "SELECT id, pool, region, zone, kind, made, until, ending, address, owner, name, stopped, "
            "remains, queued, incarnation, reason "
            "FROM machines ORDER BY made, id"
        )
        found = []
        for row in rows:
            id, its, region, zone, kind, made, until, ending, address, owner, name, stopped = row[:12]
            remains, queued, incarnation, reason = row[12:]
            state = (
                ("queued" if queued else "stopped" if stopped else "running")
                if ending is None
                else "ending"
                if time.time() < ending + _ENDING
                else "ended"
            )
            facts = {
                "region": region,
                "zone": zone,
                "kind": kind,
                "launched": made,
                "until": until,
                "addresses": (address,) if address else (),
                "hourly": self.hourly,
                "owner": owner,
                "name": name,
                "remains": state == "ended" and bool(remains),
                "reason": reason,
                "incarnation": f"{id} {incarnation}" if self.queues and not queued else "",
            }
            found.append(MachineRecord(id, state, its, **facts))
        return [one for one in found if pool in (None, one.pool)]

    def alive(self, pool: str | None = None) -> list[str]:
        """The machines that somebody pays for."""
        return [one.id for one in self.machines(pool) if one.is_there]

    def remains(self) -> list[str]:
        """The machines that have ended and left something."""
        return [one.id for one in self.machines() if one.remains]

    def most_at_once(self, pool: str) -> int:
        """How many machines a pool had at a time, at most."""
        rows = self._rows("SELECT made, ending FROM machines WHERE pool = ?", pool)
        return max((sum(1 for a, b in rows if a <= at and (b is None or b > at)) for at, _ in rows), default=0)

    def pools(self) -> list[str]:
        """The pools that machines were ever made for."""
        return [pool for (pool,) in self._rows("SELECT DISTINCT pool FROM machines")]

    def calls(self, pool: str) -> list[tuple[str, str]]:
        """What was asked for a pool, and what fault there was."""
        return [(call, said) for call, said in self._rows("SELECT call, said FROM calls WHERE pool = ?", pool)]

    # -- inside ------------------------------------------------------------------------------------

    def _make(self, order: Order, count: int) -> list[str]:
        with self._transaction() as connection:
            where = (order.token, order.zone)
            found = connection.execute("SELECT id, ending FROM machines WHERE token = ? AND zone = ?", where).fetchall()
            if found and all(ending is not None for _, ending in found):
                raise OrderSpent("what was made for this token has ended")
            if found:
                return [id for id, _ in found]
            used = dict(connection.execute("SELECT address, min(ending IS NOT NULL) FROM machines GROUP BY address"))
            # Another host, where there is one: a machine that was recreated is not the one that was there.
            free = sorted((name for name in self.hosts if used.get(name, 1)), key=lambda name: name in used)
            if self.hosts and len(free) < count:
                raise NoCapacity(f"{order.zone} has {len(free)} machines left")
            places, reason = connection.execute("SELECT free, reason FROM queue").fetchone() or (count, "")
            self._power_on(free[: min(count, places)])
            ids = [f"m-{uuid.uuid4().hex[:12]}" for _ in range(count)]
            now, region = time.time(), order.zone.partition("-")[0]
            for number, (id, address) in enumerate(zip(ids, [*free[:count], *[""] * count], strict=False)):
                waits = number >= places
                connection.execute(
                    "INSERT INTO machines VALUES (?, ?, ?, ?, ?, 'small', ?, ?, ?, ?, NULL, ?, ?, 0, 0, ?, 1, ?)",
                    (
                        id,
                        order.pool,
                        *where[:1],
                        region,
                        order.zone,
                        now,
                        now + self.shown_after,
                        order.until,
                        order.owner,
                        address,
                        order.name,
                        waits,
                        reason if waits else "",
                    ),
                )
            if places < count:
                connection.execute("UPDATE queue SET free = 0")
            return ids

    def _power_on(self, names: Sequence[str]) -> None:
        for host in _worlds.get(self.store, ()):
            if host.name in names and not host.pid:
                host.boot()

    @contextlib.contextmanager
    def _call(self, call: str, pool: str) -> Iterator[str]:
        """Have happen what is planned for this call, before it and after it."""
        fault = self._fault(call)
        self._rows("INSERT INTO calls (pool, call, said) VALUES (?, ?, ?)", pool, call, fault)
        if fault == "error":
            raise ConnectionError("the connection broke before the call was sent")
        if fault == "hang":
            time.sleep(_HANG)
        if fault == "kill-before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "interrupt-before":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        yield fault
        if fault == "late":
            time.sleep(_HANG)
        if fault == "kill-after":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "interrupt-after":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        if fault in ("lost", "half-lost"):
            raise TimeoutError("the answer was lost")

    def _fault(self, call: str) -> str:
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT number, fault, skip FROM faults WHERE call = ? ORDER BY number LIMIT 1", (call,)
            ).fetchall()
            for number, fault, skip in rows:
                if skip:
                    connection.execute("UPDATE faults SET skip = skip - 1 WHERE number = ?", (number,))
                else:
                    connection.execute("DELETE FROM faults WHERE number = ?", (number,))
                    return str(fault)
        return ""

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._transaction() as connection:
            return connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        new = not Path(self.store).exists()
        connection = sqlite3.connect(self.store, timeout=60, isolation_level=None)
        try:
            if new:
                connection.executescript(f"PRAGMA journal_mode=WAL;{_SCHEMA}")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()


def _with_link_killed(session: ConnectionSession, pool: str, fault: str) -> None:
    """Have the pool's link be killed at some moment, in a thread where that is not now."""
    if fault in _DEATHS:
        link = os.pidfd_open(session.open_link().pid)
        if not (wait := _DEATHS[fault]):
            _kill(link)
            return
        threading.Timer(wait, _kill, [link]).start()
        time.sleep(0.1)
        return
    up = threading.Event()

    def kill_early() -> None:
        while not up.is_set():
            for process in links(pool):
                with contextlib.suppress(OSError):
                    _kill(os.pidfd_open(process.pid))
                return

    watcher = threading.Thread(target=kill_early)
    watcher.start()
    try:
        session.open_link()
    finally:
        up.set()
        watcher.join()


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
