"""Values that a pool and a provisioner exchange: offers, orders, records."""

from __future__ import annotations

from dataclasses import dataclass

QUEUED, PENDING, RUNNING, STOPPED, ENDING, ENDED = "queued", "pending", "running", "stopped", "ending", "ended"
# Prefix of the id of a pool that does not exist yet: its job was left in a queue.
QUEUED_POOL = "queued-"
# States in which a machine costs nothing, or soon will.
_GOING = (ENDING, ENDED)


@dataclass(frozen=True)
class Offer:
    """Kind of machine that a provider could create.

    Attributes
    ----------
    hourly : float or None
        Price of one machine in dollars per hour; None if unknown.
    accelerator : str
        One accelerator of each machine, as `Accelerator.kind` writes it.
    count : int
        Accelerators of each machine.
    vcpus, memory_gb : float or None
        Processors and memory of each machine; None if unknown.
    region : str
        Region; empty if the provider has none.
    zones : tuple of str
        Zones of the region to try, the best one first; empty if the provider chooses.
    market : str
        ``"spot"`` or ``"on-demand"``; empty if there is only one market.
    priced : str
        Origin of the price, such as ``"list price of 2026-11-20"``; empty if unknown.
    """

    name: str
    hourly: float | None
    accelerator: str = ""
    count: int = 0
    vcpus: float | None = None
    memory_gb: float | None = None
    region: str = ""
    zones: tuple[str, ...] = ()
    market: str = ""
    priced: str = ""


@dataclass(frozen=True)
class MachineRecord:
    """Machine, as its provider describes it.

    Attributes
    ----------
    state : str
        ``"queued"``, ``"pending"``, ``"running"``, ``"stopped"``, ``"ending"`` or ``"ended"``; any other state counts
        as existing. A queued machine waits for a place, for as long as that takes (`Provisioner.queues`).
    pool : str
        Id of the pool that it was created for; empty if there is none.
    addresses : tuple of str
        Addresses to reach it, the best one first.
    launched : float or None
        Creation time, in seconds since 1970.
    until : float or None
        Time from which any sweeper may end it, in seconds since 1970.
    reason : str
        Reason of its end or of its wait, in the provider's words. For a machine that has come back: why its last
        incarnation ended.
    hourly : float or None
        Dollars per hour while it runs; None if unknown here. `Provisioner.costs` may still know it.
    disk_gb : float or None
        Size of its disk in GB, for its costs; None if unknown.
    public : bool
        True if it has a public address, which may cost money.
    owner, name : str
        The order's owner, and the name of its pool; empty if the machine does not say.
    incarnation : str
        Changes when the machine has come back with none of its processes (`Provisioner.queues`). Empty while it is
        queued, and always if the provider's machines do not come back.
    remains : bool
        Whether it has ended, but leaves something at the provider that `Provider.destroy` must remove.
    hopeless : bool
        Whether it ended because of what it was told to run, so that another machine would end in the same way.
    """

    id: str
    state: str
    pool: str = ""
    addresses: tuple[str, ...] = ()
    region: str = ""
    zone: str = ""
    kind: str = ""
    market: str = ""
    launched: float | None = None
    until: float | None = None
    reason: str = ""
    hourly: float | None = None
    disk_gb: float | None = None
    public: bool = False
    owner: str = ""
    name: str = ""
    incarnation: str = ""
    remains: bool = False
    hopeless: bool = False

    @property
    def is_there(self) -> bool:
        """True if it costs money, or may."""
        return self.state not in _GOING

    @property
    def must_go(self) -> bool:
        """True if something of it must be destroyed when nobody needs it any more."""
        return self.is_there or self.remains

    @property
    def is_usable(self) -> bool:
        """True if it can be a node, now or soon."""
        return self.is_there and self.state != STOPPED


@dataclass(frozen=True)
class Charge:
    """Cost of a machine, by its provider's price list.

    Attributes
    ----------
    hourly : float or None
        Dollars per hour in its present state; None if unknown.
    dollars : float or None
        Dollars since it is in this state; None if unknown.
    """

    hourly: float | None = None
    dollars: float | None = None


@dataclass(frozen=True)
class Order:
    """One call that creates machines, recorded in the registry before it is sent.

    Attributes
    ----------
    pool : str
        Id of the pool, for the machines' tags.
    token : str
        Idempotency token, the same for a retry of the call. At most 64 letters and digits.
    offer : Offer, optional
        Kind of machine.
    zone : str
        Zone; empty if the provider chooses.
    until : float or None
        Time from which any sweeper may end the machines, in seconds since 1970, for their tags.
    owner : str
        Creator of the machines, for their tags: a host's name, and the id of the registry that has their pool.
    name : str
        The pool's name, for the machines' tags.
    """

    pool: str
    token: str = ""
    offer: Offer | None = None
    zone: str = ""
    until: float | None = None
    owner: str = ""
    name: str = ""


__all__ = [
    "ENDED",
    "ENDING",
    "PENDING",
    "QUEUED",
    "QUEUED_POOL",
    "RUNNING",
    "STOPPED",
    "Charge",
    "MachineRecord",
    "Offer",
    "Order",
]
