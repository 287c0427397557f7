"""Values that a pool and a provisioner exchange: offers, orders, records."""

from __future__ import annotations

from dataclasses import dataclass

PENDING, RUNNING, STOPPED, ENDING, ENDED = "pending", "running", "stopped", "ending", "ended"
# States in which a machine costs nothing, or soon will.
_GOING = (ENDING, ENDED)


@dataclass(frozen=True)
class Offer:
    """A kind of machine that a provider could make.

    Attributes
    ----------
    hourly : float or None
        Dollars an hour for one machine; None where nobody knows.
    accelerator : str
        What each has, as `Accelerator` writes it.
    count : int
        How many accelerators each has.
    vcpus, memory_gb : float or None
        What each has; None where nobody knows.
    region : str
        Where it is made; empty where there are no regions.
    zones : tuple of str
        Parts of the region to try, the best one first; empty where the provider chooses.
    market : str
        ``"spot"`` or ``"on-demand"``; empty where there is one market.
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


@dataclass(frozen=True)
class MachineRecord:
    """A machine as its provider knows it.

    Attributes
    ----------
    state : str
        ``"pending"``, ``"running"``, ``"stopped"``, ``"ending"`` or ``"ended"``; another word counts as there.
    pool : str
        The id of the pool that it was made for; empty where it was not made for one.
    addresses : tuple of str
        Where it is reached, the best one first.
    launched : float or None
        When it was made, by the time of day.
    until : float or None
        When it may be ended by anybody who sees it, by the time of day.
    reason : str
        Why it has ended, in the provider's words.
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

    @property
    def is_there(self) -> bool:
        """True if it costs money, or may."""
        return self.state not in _GOING

    @property
    def is_usable(self) -> bool:
        """True if it can be a node, now or soon."""
        return self.is_there and self.state != STOPPED


@dataclass(frozen=True)
class Order:
    """One call that makes machines, in the registry before it is sent.

    Attributes
    ----------
    pool : str
        The id of the pool; the machines are to be marked with it.
    token : str
        The same for the same call that is sent again: it makes nothing twice. At most 64 letters and digits.
    offer : Offer, optional
        What is to be made.
    zone : str
        Where; empty where the provider chooses.
    until : float or None
        The machines are to be marked with it: when anybody who sees them may end them, by the time of day.
    owner : str
        The machines are to be marked with it: who made them, for a person to read.
    """

    pool: str
    token: str = ""
    offer: Offer | None = None
    zone: str = ""
    until: float | None = None
    owner: str = ""


__all__ = ["ENDED", "ENDING", "PENDING", "RUNNING", "STOPPED", "MachineRecord", "Offer", "Order"]
