"""Machines that a provider creates: bought once, adopted, destroyed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import MachineError, NoCapacity, OrderSpent, PoolError, ProvisionError, Unanswered
from ...providers.base import Provisioner, account_of, can_stop, has_prices, has_queue, is_provisioner, provider_of
from ...providers.provisioning_types import STOPPED, MachineRecord, Order
from ...util.pool_cost import purchase
from ...util.text import first_line
from ..base.timeouts import TIMEOUTS
from ..registry import machine_orders, provider_accounts
from ..registry.machine_orders import OrderRow
from ..registry.machine_sweep import check_account, end_machines
from ..registry.orphaned_machines import destroy
from ..registry.pool_bill import PoolBill
from . import zone_choice
from .capacity_backoff import Place, Refusals

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..registry.registry import Registry

# Rounds of listing the machines and buying the missing ones, in one attempt.
_ROUNDS = 5
# How often an order without an answer is sent again. The pauses double, from a fifth of the delay between attempts to
# three times the delay.
_RESENT, _FIFTH, _MOST_DELAYS = 6, 5, 3
_MARGIN = TIMEOUTS.machines.margin
# How long a change that was given up waits for the call that it had sent.
_PATIENCE = TIMEOUTS.start.given_up
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.machines.sweep_pause, TIMEOUTS.machines.longest_sweep_pause


def _say_nothing(text: str) -> None:
    """Discard a message."""


class Provisioning:
    """Machines of one pool whose provider creates them; thread-safe.

    Parameters
    ----------
    registry : Registry
        Records each call before it is sent.
    pool : str
        The pool's id.
    """

    def __init__(self, registry: Registry, pool: str) -> None:
        self._registry, self._pool = registry, pool
        # Held while machines are bought, and while they are destroyed.
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._closed = self._given_up = self._adopts = False
        # The only machines to keep, once the call that is under way has returned.
        self._kept: Collection[str] | None = None
        # The recorded orders, in case the registry fails.
        self._rows: dict[str, OrderRow] = {}
        # The order without an answer: it is sent again before any other.
        self._open: tuple[Order, int] | None = None
        self._refusals = Refusals()
        # The machines that it has, as they were listed last.
        self._had: list[MachineRecord] = []
        self._account: str | None = None
        # The costs of the machines; the function that reports each order before it is sent.
        self.bill = PoolBill(registry, pool)
        self._tell: Callable[[str], None] = _say_nothing
        self._deadline: float | None = None

    def plan(self, spec: PoolSpec) -> str:
        """Record that machines will be created, if the provider creates any.

        Returns a notice about the machines' lifetime, or "". Raises PoolError if the registry cannot be written.
        """
        if not self.buys(spec):
            return ""
        self._write(self._row(spec, Order(self._pool, until=self.deadline(spec)), 0, machine_orders.PLANNED))
        if spec.ttl is not None or spec.lifetime is None:
            return ""
        return f"the machines that are made for this pool end with it, after {spec.lifetime / 3600:g} h at the latest"

    def deadline(self, spec: PoolSpec) -> float:
        """Return when a sweep may destroy its machines, as Unix time.

        It is later than the pool's own end. It is set with the first order, and a later manager keeps it.
        """
        if self._deadline is None:
            known: list[OrderRow] = []
            with contextlib.suppress(PoolError):
                known = machine_orders.of(self._registry, self._pool)
            self._deadline = max((row.until for row in known if row.until is not None), default=None)
        if self._deadline is None:
            limits = spec.options.provision_timeout + spec.options.bootstrap_timeout
            if has_queue(spec.provider):
                limits += spec.options.queue_timeout
            self._deadline = time.time() + limits + (spec.lifetime or 0.0) + _after(spec)
        return self._deadline

    def left(self, spec: PoolSpec) -> float | None:
        """Return the seconds until the pool must end, before its machines do.

        Returns None if its machines are not bought.
        """
        return self.deadline(spec) - _after(spec) - time.time() if self.buys(spec) else None

    @staticmethod
    def buys(spec: PoolSpec) -> bool:
        """Return whether machines are created, and must be destroyed."""
        return is_provisioner(spec.provider)

    def begin(self) -> None:
        """Allow machines to be bought, until `stop`."""
        self._halt = threading.Event()
        if self._closed:
            self._halt.set()

    @contextlib.contextmanager
    def adopting(self) -> Iterator[None]:
        """Forbid new machines in the block, as nobody has asked for others."""
        self._adopts = True
        try:
            yield
        finally:
            self._adopts = False

    def stop(self) -> None:
        """Stop sending orders; do not wait for the one that is under way."""
        self._halt.set()

    def acquire(
        self,
        spec: PoolSpec,
        count: int,
        before: Sequence[str] = (),
        tell: Callable[[str], None] = _say_nothing,
        *,
        without: Collection[str] = (),
        move: bool = True,
    ) -> list[str]:
        """Return ``count`` machines: existing ones, and new ones.

        New ones are made in the zone of the existing ones if that has capacity.

        Parameters
        ----------
        spec : PoolSpec
            Spec of the pool as it will be.
        count : int
            Number of machines, one per node.
        before : sequence of str
            The nodes' previous machines; one that still exists keeps its place.
        tell : callable
            Receives a line on each order before it is sent, with its price, and on each refusal.
        without : collection of str
            Machines that are about to be taken away: they are neither used nor destroyed.
        move : bool
            Whether, if the plugins need one zone and that of the existing machines has no capacity, all are made
            elsewhere, and the existing ones destroyed.

        Returns
        -------
        list of str
            Their ids, by node.

        Raises
        ------
        ProvisionError
            If there are not enough, or `stop` was called.
        """
        if not self.buys(spec):
            return list(provider_of(spec).create(spec, count, Order(self._pool)))
        halt = self._halt
        with self._lock:
            self._tell, self._kept = tell, None
            try:
                return self._acquire(spec, count, before, halt, set(without), move=move)
            finally:
                if self._kept is not None:
                    self._keep_only(spec, self._kept)
                if self._given_up:
                    # `end` did not wait for this call.
                    self._end(spec, _MARGIN)

    def release(self, spec: PoolSpec, ids: Sequence[str]) -> None:
        """Destroy machines that are no nodes any more, if possible."""
        if ids and self.buys(spec):
            with self._lock, contextlib.suppress(Exception):
                _provisioner(spec).destroy(ids)
                self.bill.close(ids)

    def keep_only(self, spec: PoolSpec, ids: Collection[str]) -> None:
        """Destroy all machines of the pool but these, also those of an abandoned call."""
        if not self.buys(spec):
            return
        self._kept = set(ids)
        if self._lock.acquire(timeout=_PATIENCE):
            # Otherwise, the call that is under way does it when it returns.
            try:
                self._kept = None
                self._keep_only(spec, ids)
            finally:
                self._lock.release()

    def charge(self, spec: PoolSpec) -> None:
        """Ask the provider for the machines and what they cost so far."""
        if not self.buys(spec) or not (rows := self._known()):
            return
        provider = _provisioner(spec)
        records = provider.list(self._pool, _regions(rows))
        if self._closed:
            # The list may be older than the machines' end.
            return
        self.bill.seen(spec.name, provider, records)
        self.bill.price(provider)

    def end(self, spec: PoolSpec, limit: float) -> list[str]:
        """Stop buying, and destroy all machines of the pool.

        Parameters
        ----------
        spec : PoolSpec
            Spec of the pool.
        limit : float
            Seconds to wait until the machines are gone.

        Returns
        -------
        list of str
            What is not known to be gone, or why it is not known; empty when all machines are gone.
        """
        self._closed = True
        self.stop()
        if not self.buys(spec):
            return []
        began = time.monotonic()
        if not self._lock.acquire(timeout=limit):
            self._given_up = True
            if not self._lock.acquire(blocking=False):
                return ["a call that makes machines has not returned"]
        try:
            return self._end(spec, max(0.0, limit - (time.monotonic() - began)))
        finally:
            self._lock.release()

    def halt(self, spec: PoolSpec, ids: Sequence[str], limit: float) -> list[str]:
        """Stop buying, and stop the machines; return those not confirmed as stopped.

        Other machines of the pool, such as one that was being prepared, are destroyed.
        """
        provider = spec.provider
        assert can_stop(provider)
        self._closed = True
        self.stop()
        with self._lock:
            end, pause = time.monotonic() + limit, _PAUSE
            left, why = list(ids), ""
            self._keep_only(spec, ids)
            while left:
                try:
                    provider.stop(ids)
                    left = [one.id for one in provider.describe(ids) if one.is_there and one.state != STOPPED]
                except Exception as error:
                    why = first_line(error)
                if time.monotonic() > end:
                    break
                time.sleep(pause if left else 0.0)
                pause = min(2 * pause, _LONGEST_PAUSE)
            with contextlib.suppress(Exception):
                self.bill.seen(spec.name, provider, provider.list(self._pool, _regions(self._known())))
                self.bill.price(provider)
        return [f"{', '.join(left)} ({why})" if why else ", ".join(left)] if left else []

    # -- with the lock held ------------------------------------------------------------------------

    def _end(self, spec: PoolSpec, limit: float) -> list[str]:
        rows = self._known()
        left = end_machines(_provisioner(spec), self._pool, rows, limit, bill=self.bill) if rows else []
        if not left:
            with contextlib.suppress(PoolError):
                known = machine_orders.of(self._registry, self._pool)
                # If `end` did not wait, the plan stays, by which a sweep finds the pool; the pool is recorded as
                # ending.
                machine_orders.forget(self._registry, [row for row in known if row.token or not self._given_up])
            self._rows.clear()
        return left

    def _keep_only(self, spec: PoolSpec, kept: Collection[str]) -> None:
        with contextlib.suppress(Exception):
            provider, rows, now = _provisioner(spec), self._known(), time.time()
            # Machines that were made just now may not be listed yet.
            fresh = [id for row in rows if now - row.touched <= provider.visible_within for id in row.ids]
            records = provider.list(self._pool, _regions(rows)) if rows else ()
            gone = {record.id for record in records if not record.is_there}
            found = dict.fromkeys([*(record.id for record in records), *fresh])
            others = [id for id in found if id not in gone and id not in kept]
            destroy(provider, others)
            self.bill.close(others)

    def _acquire(
        self, spec: PoolSpec, count: int, before: Sequence[str], halt: threading.Event, left: set[str], *, move: bool
    ) -> list[str]:
        if self._account is None:
            account = str(self._ask(spec, halt, functools.partial(account_of, _provisioner(spec))))
            # Another account's list has none of the pool's machines: all would be bought again.
            check_account(account, self._known())
            self._account = account
        fresh: list[str] = []
        moved: list[str] = []
        spent: OrderSpent | None = None
        for _ in range(_ROUNDS):
            try:
                if self._open is not None:
                    fresh += self._send(spec, *self._open, halt)
                there = [id for id in self._there(spec, fresh, halt) if id not in left]
                self._had = [one for one in self._had if one.id in there]
                if len(there) >= count:
                    return self._placed(spec, there, count, before, moved)
                if self._adopts:
                    raise ProvisionError(f"{len(there)} of {count} machines are there, and no other is made by itself")
                fresh += self._buy(spec, count - len(there), halt)
            except NoCapacity as error:
                if not (move and self._had and zone_choice.needs_one_zone(spec)):
                    raise
                self._tell(f"{first_line(error)}; all {count} are made elsewhere, as they must be in one zone")
                left.update(there)
                moved += there
                continue
            except OrderSpent as error:
                spent = error
                continue
            there = [id for id in dict.fromkeys([*there, *fresh]) if id not in left]
            if len(there) >= count:
                return self._placed(spec, there, count, before, moved)
        raise _passing(f"{count} machines were ordered {_ROUNDS} times, and some ended at once") from spent

    def _there(self, spec: PoolSpec, fresh: Sequence[str], halt: threading.Event) -> list[str]:
        """Return the usable machines of the pool, the oldest first."""
        rows, self._had = self._known(), []
        if not rows:
            return []
        now, visible = time.time(), _provisioner(spec).visible_within
        waits = [
            visible - max(0.0, now - row.touched)
            for row in rows
            if row.state in (machine_orders.SENT, machine_orders.MADE) and not set(row.ids) & set(fresh)
        ]
        # A machine that was just created may not be listed yet: it would be bought again.
        halt.wait(max([0.0, *waits]))
        self._must_go_on(halt)
        records = self._list(spec, rows, halt)
        self.bill.seen(spec.name, _provisioner(spec), records)
        gone = {record.id for record in records if not record.is_usable}
        self._had = [record for record in records if record.is_usable]
        usable = sorted((record for record in records if record.is_usable), key=lambda one: one.launched or 0.0)
        return list(dict.fromkeys([*(one.id for one in usable), *(id for id in fresh if id not in gone)]))

    def _list(self, spec: PoolSpec, rows: Sequence[OrderRow], halt: threading.Event) -> list[MachineRecord]:
        return list(self._ask(spec, halt, lambda: _provisioner(spec).list(self._pool, _regions(rows))))

    def _placed(
        self, spec: PoolSpec, there: Sequence[str], count: int, before: Sequence[str], moved: Sequence[str]
    ) -> list[str]:
        """Give nodes machines, in old places; destroy the surplus."""
        kept = [id if id in there else "" for id in before[:count]] + [""] * (count - len(before))
        others = [id for id in there if id not in kept]
        placed = [id or others.pop(0) for id in kept]
        others += moved
        if others:
            # On failure, the pool's end destroys them.
            with contextlib.suppress(Exception):
                _provisioner(spec).destroy(others)
                self.bill.close(others)
        return placed

    def _buy(self, spec: PoolSpec, count: int, halt: threading.Event) -> list[str]:
        """Create machines at the first place that has capacity."""
        whys: list[str] = []
        number = sum(1 for row in self._known() if row.token)
        owner = provider_accounts.owner(self._registry)
        # Only a lack of capacity passes by waiting.
        passing = False
        places = self._places(spec)
        untried = list(places)
        while (place := self._refusals.following(untried)) is not None:
            untried.remove(place)
            offer, zone = place
            token = hashlib.sha256(f"{self._pool}/{number}/{len(whys)}/{offer}/{zone}".encode()).hexdigest()[:40]
            order = Order(self._pool, token, offer, zone, self.deadline(spec), owner, spec.name)
            # The line repeats the last refusal, which would be replaced at once if it had a line of its own.
            price = offer.hourly if has_prices(spec.provider) else 0.0
            ordered = purchase(count, offer.name, offer.market, zone or offer.region, price)
            self._tell("; ".join([*whys[-1:], ordered]))
            try:
                if made := self._send(spec, order, count, halt):
                    return made
                whys.append(f"{zone or offer.region or offer.name}: made none")
                passing = True
            except NoCapacity as error:
                self._refusals.note(place, error)
                whys.append(first_line(error))
                passing = passing or error.scope == "zone"
            self._tell(whys[-1])
        if not places and self._had:
            raise NoCapacity(f"{spec.provider} has no machine where the others are")
        if not places:
            raise ProvisionError(f"{spec.provider} has no machine that fits what is asked for")
        said = "; ".join(dict.fromkeys([*whys, *self._refusals.reasons(untried)]))
        failed = NoCapacity(f"{count} machine{'s' if count > 1 else ''} could not be obtained: {said}")
        failed.passing = passing
        raise failed

    def _places(self, spec: PoolSpec) -> list[Place]:
        """Return offers and zones, the best first."""
        most, offers = spec.max_hourly_cost, _provisioner(spec).offers(spec)
        cheap = [one for one in offers if most is None or one.hourly is None or one.hourly <= most]
        found = [(offer, zone) for offer in cheap for zone in offer.zones or ("",)]
        return zone_choice.nearest(found, self._had, spec)

    def _send(self, spec: PoolSpec, order: Order, count: int, halt: threading.Event) -> list[str]:
        """Send an order, again if unanswered: the same token creates the same machines."""
        delay = spec.options.provision_retry_delay
        for number in itertools.count():
            try:
                return self._send_once(spec, order, count, halt)
            except Unanswered as error:
                if number >= _RESENT:
                    raise
                pause = min(_MOST_DELAYS, 2**number / _FIFTH) * delay * random.uniform(0.8, 1.2)
                self._tell(f"{first_line(error)}; the order is sent again in {pause:.0f} s")
                halt.wait(pause)
                self._must_go_on(halt)
        raise AssertionError

    def _send_once(self, spec: PoolSpec, order: Order, count: int, halt: threading.Event) -> list[str]:
        """Record and send an order; it stays open if there is no answer."""
        row = self._row(spec, order, count, machine_orders.SENT)
        before = self._open is not None

        def send() -> list[str]:
            self._write(row)
            self._open = (order, count)
            return list(_provisioner(spec).create(spec, count, order))

        try:
            ids = self._ask(spec, halt, send)
        except ProvisionError as error:
            if not isinstance(error, (NoCapacity, OrderSpent)) and error.passing:
                raise
            self._open = None
            if not before:
                self._write(replace(row, state=machine_orders.REFUSED))
            elif isinstance(error, NoCapacity):
                # It is refused now; only the list shows whether it succeeded before.
                raise OrderSpent(str(error)) from error
            raise
        self._open = None
        self._write(replace(row, state=machine_orders.MADE, ids=tuple(ids)))
        if has_prices(spec.provider):
            self.bill.bought(spec.name, row.provider, ids, order)
        return ids

    def _ask(self, spec: PoolSpec, halt: threading.Event, call: Callable[[], Any]) -> Any:
        """Call the provider; a missing answer is a transient error."""
        self._must_go_on(halt)
        try:
            return call()
        except (MachineError, OSError, TimeoutError) as error:
            raise Unanswered(f"{spec.provider} did not answer: {first_line(error)}") from error

    def _must_go_on(self, halt: threading.Event) -> None:
        if halt.is_set():
            raise ProvisionError("stopped: no more machines are made")

    # -- records -----------------------------------------------------------------------------------

    def _row(self, spec: PoolSpec, order: Order, count: int, state: str) -> OrderRow:
        provider, region = _provisioner(spec), "" if order.offer is None else order.offer.region
        recipe = json.dumps(provider.recipe(), sort_keys=True)
        account = self._account or ""
        return OrderRow(
            *(self._pool, order.token, provider.kind, recipe, account, region, order.zone, count, order.until, state),
            touched=time.time(),
        )

    def _write(self, row: OrderRow) -> None:
        row = replace(row, touched=time.time())
        machine_orders.write(self._registry, row)
        self._rows[row.token] = row

    def _known(self) -> list[OrderRow]:
        """Return the orders of this process and of earlier managers."""
        rows = dict(self._rows)
        with contextlib.suppress(PoolError):
            rows = {**{row.token: row for row in machine_orders.of(self._registry, self._pool)}, **rows}
        return [row for row in rows.values() if row.token]


def _provisioner(spec: PoolSpec) -> Provisioner:
    assert is_provisioner(spec.provider)
    return spec.provider


def _regions(rows: Sequence[OrderRow]) -> list[str]:
    return list(dict.fromkeys(row.region for row in rows if row.region))


def _after(spec: PoolSpec) -> float:
    """Return the seconds from the pool's end to its machines' deadline."""
    return spec.options.shutdown_timeout + _MARGIN


def _passing(text: str) -> ProvisionError:
    error = ProvisionError(text)
    error.passing = True
    return error
