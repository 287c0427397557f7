"""Provider protocol: creates, finds, connects and ends machines.

Every provider passes the suite in `tests/providers/conformance.py`; `docs/providers.md` says how to write one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from ..errors import SpecError
from ..spec.provider_traits import ProviderTraits
from ..util.validate import brief
from .machine_costs import by_the_hour
from .provisioning_types import Charge, MachineRecord, Offer, Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..machines.base import Machine
    from ..machines.link.client import Link
    from ..machines.ssh.types import Prompts
    from ..spec.pool_spec import PoolSpec

__all__ = [
    "Charge",
    "ConnectionSession",
    "MachineRecord",
    "Offer",
    "Order",
    "Provider",
    "Provisioner",
    "account_of",
    "can_stop",
    "has_prices",
    "has_queue",
    "is_provisioner",
    "provider_of",
]


@dataclass(frozen=True)
class ConnectionSession:
    """Options of one call of `Provider.connect`.

    Parameters
    ----------
    prompts : Prompts, optional
        Callbacks that ask for passphrases and host keys; nothing is asked by default.
    open_link : callable, optional
        Returns the pool's `Link`, started if there is none. It holds SSH connections that survive the notebook. By
        default, connections end with this process.
    stop : threading.Event
        Set when the connections are not needed any more.
    known : mapping of str to mapping
        `Machine.facts` of machines to reconnect to, by id.
    tell : callable
        Called with a line for a person when a machine takes long.
    waits : dict of str to str
        What is being waited for, by machine id. The provider writes it, for the error message of a caller that gives
        up.
    """

    prompts: Prompts | None = None
    open_link: Callable[[], Link] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda line: None
    waits: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Provider(ProviderTraits, Protocol):
    """Provider of machines; a frozen value that compares by its fields.

    It is pickled with its pool's spec. Messages show its ``str``.
    """

    def default_nodes(self) -> int:
        """Return the number of nodes if the user names none."""

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return machines that fit the spec, cheapest first."""

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Create ``count`` machines, tagged with the order's pool; return their ids."""

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return all machines that are tagged with a pool's id."""

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return the state of machines."""

    def destroy(self, ids: Sequence[str]) -> None:
        """End machines; ignore those that have ended."""

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to machines in parallel; return them in the order of ``ids``.

        If one fails, none is left connected: raise its MachineError, whose message names all that failed.
        """

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return unused machines for a growing pool; None if machines are created."""

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> Provider:
        """Return the provider of a pool whose machines change.

        Parameters
        ----------
        ids : sequence of str
            The pool's machines that stay, in the order of its nodes.
        add : sequence of str
            Names of machines that the user adds.
        remove : sequence of str
            Ids of machines that the user removes by name: they are not used again.

        Returns
        -------
        Provider
            The new provider.

        Raises
        ------
        SpecError
            When machines cannot be added by name.
        """


class Provisioner(Provider, Protocol):
    """Provider that creates machines (``provisions``), which cost money until ended.

    It only makes single calls. The pool ensures that no machine is bought twice or lost: it records an `Order` before
    each call, retries an unanswered call with the same token, adopts the machines that `list` finds, and in the end
    ends all of them.
    """

    @property
    def visible_within(self) -> float:
        """Seconds after which `list` shows a new machine, at the latest."""

    @property
    def power_file(self) -> str:
        """The machines' file for `machines.power_watchdog`; empty without a watchdog.

        The provider has the watchdog started at each boot. The watchdog powers off a machine that nobody uses any more.
        """

    @property
    def queues(self) -> bool:
        """Whether machines may queue, and may come back under their ids.

        A machine that waits has the state ``"queued"`` and a reason. The pool polls `describe`, shows each change, and
        calls `connect` when no machine is queued; the time in the queue does not count in `Options.provision_timeout`.
        A machine that was taken away and has come back has another ``MachineRecord.incarnation``. The pool then
        prepares it again, in place of its node.

        If a provider lacks this attribute, its machines do neither.
        """

    def account(self) -> str:
        """Return the name of the account that pays, for a person."""

    def recipe(self) -> Mapping[str, Any]:
        """Return JSON from which `restore` makes an equal provider; no secrets."""

    @classmethod
    def restore(cls, recipe: Mapping[str, Any]) -> Provisioner:
        """Return a provider made from its `recipe`."""

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return machines that fit the spec, the best first."""

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Send one call that creates machines in one zone; return their ids.

        Parameters
        ----------
        spec : PoolSpec
            The pool.
        count : int
            Number of machines.
        order : Order
            Token, tags and place.

        Returns
        -------
        sequence of str
            Ids; fewer than ``count`` if it created fewer.

        Raises
        ------
        NoCapacity
            When nothing was created, and another place may have machines.
        OrderSpent
            When the order's token cannot be used again.
        Unanswered
            When there was no answer, or the provider is busy: the call is sent again within seconds.
        ProvisionError
            When nothing was created and no other place can help. If ``passing`` is set, the call is retried unchanged
            in the next attempt.
            After any other error, it is unknown what was created.
        """

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return all machines tagged with a pool's id, or with any if it is None.

        Machines that have ended may be left out, unless something of them remains (`MachineRecord.remains`).
        """

    def all_regions(self) -> Sequence[str]:
        """Return every region that the account may use; by default none."""
        return ()

    def costs(self, records: Sequence[MachineRecord], at: float) -> Sequence[Charge]:
        """Return what machines cost, in the order of ``records``.

        By default (`machine_costs.by_the_hour`), a running machine costs ``MachineRecord.hourly``, and nothing else is
        known.

        Parameters
        ----------
        records : sequence of MachineRecord
            Machines, each in its state since ``launched``. A stopped one costs its disk only.
        at : float
            End of the time that is charged, in seconds since 1970.

        Returns
        -------
        sequence of Charge
            What each costs an hour now, and since it is in its state.
        """
        return by_the_hour(records, at)

    def forget(self, pool: str) -> None:
        """Remove local files, such as keys, of a pool whose machines have all ended."""


class StoppableProvisioner(Provisioner, Protocol):
    """Provisioner that can stop machines, which then cost only their disks."""

    def stop(self, ids: Sequence[str]) -> None:
        """Stop machines; ignore those that are stopped."""

    def start(self, ids: Sequence[str]) -> None:
        """Start stopped machines; ignore those that run.

        Raises NoCapacity if there is no capacity now; the machines stay stopped.
        """


class LoggingProvider(Provider, Protocol):
    """Provider with the logs of its machines' own first processes, not the pool's."""

    def console(self, id: str, *, previous: bool = False, lines: int | None = None) -> str:
        """Return the newest lines of a machine's own log.

        Parameters
        ----------
        id : str
            The machine.
        previous : bool
            True for the log of its last incarnation: before it was restarted, or recreated under its id.
        lines : int, optional
            Maximum number of lines; by default, the provider decides. The text has at most 1 MB.

        Returns
        -------
        str
            The text.

        Raises
        ------
        ProvisionError
            When there is no such log; the message has the reason.
        """


def provider_of(spec: PoolSpec) -> Provider:
    """Return a pool's provider; raise SpecError if it does not implement `Provider`."""
    if not is_provider(spec.provider):
        raise SpecError(f"provider must be a provider such as sky.Local(), not {brief(spec.provider)}")
    return spec.provider


def is_provider(value: object) -> TypeGuard[Provider]:
    """Return True for an object that implements `Provider`; its class does not."""
    return isinstance(value, Provider) and not isinstance(value, type)


def account_of(provider: Provisioner) -> str:
    """Return the name of the account that pays.

    A provider with an option ``account`` has the method ``account_name`` instead.
    """
    named: Callable[[], str] = getattr(provider, "account_name", None) or provider.account
    return named()


def has_console(provider: ProviderTraits) -> TypeGuard[LoggingProvider]:
    """Return True if a provider has the logs of its machines."""
    return hasattr(provider, "console")


def can_stop(provider: ProviderTraits) -> TypeGuard[StoppableProvisioner]:
    """Return True if a provider's machines can be stopped and started."""
    return is_provisioner(provider) and hasattr(provider, "stop")


def has_prices(provider: ProviderTraits) -> bool:
    """Return True if a provider's machines are billed by time; pods are not."""
    return provider.provisions and bool(getattr(provider, "has_prices", True))


def has_queue(provider: ProviderTraits) -> bool:
    """Return True if a provider's machines may queue; see `Provisioner.queues`."""
    return provider.provisions and bool(getattr(provider, "queues", False))


def is_provisioner(provider: ProviderTraits) -> TypeGuard[Provisioner]:
    """Return True if a provider creates machines."""
    return provider.provisions
