"""What bought machines cost: counted by the provider's prices, from creation to end, whoever manages the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sky_jupyter.magics import cost_table
from sky_jupyter.pool.lifecycle.provisioning import Provisioning
from sky_jupyter.pool.registry import cost_rows, pool_bill
from sky_jupyter.pool.registry.machine_sweep import end_pool_machines
from sky_jupyter.pool.registry.pool_bill import PoolBill
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers.base import MachineRecord, Offer, Order
from sky_jupyter.spec.pool_spec import PoolSpec
from sky_jupyter.util import pool_cost
from sky_jupyter.util.pool_cost import PoolCost
from tests.providers.cloud import DISK, Cloud

HOUR = 3600.0
HOURLY = 13.2


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets this process's time of day ahead, and further ahead with each call."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def wait(seconds: float) -> None:
        ahead[0] += seconds

    return wait


@pytest.fixture
def spec(tmp_path: Path) -> PoolSpec:
    return PoolSpec(provider=Cloud(str(tmp_path / "cloud.sqlite"), hourly=HOURLY), nodes=2, name="p")


def near(amount: float) -> object:
    """Within 1% of a price list."""
    return pytest.approx(amount, rel=0.01)


def account(registry: Registry, pool: str = "p1") -> PoolCost:
    return pool_bill.account(cost_rows.of(registry, pool))


def test_a_pool_costs_its_machines_prices_times_their_time(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None]
) -> None:
    provisioning = Provisioning(registry, "p1")
    provisioning.acquire(spec, 2)
    assert provisioning.bill.now().hourly == 2 * HOURLY
    later(3 * HOUR)
    # The last known price is enough, and asking the provider changes nothing.
    assert provisioning.bill.now().total == near(6 * HOURLY)
    provisioning.charge(spec)
    assert provisioning.bill.now().total == near(6 * HOURLY)
    assert provisioning.end(spec, 5) == []
    later(3 * HOUR)
    over = provisioning.bill.now()
    assert (over.total, over.hourly) == (near(6 * HOURLY), 0.0)
    assert [one.state for one in over.machines] == ["ended", "ended"]


def test_a_list_from_before_the_end_counts_no_machine_on(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    provisioning, real = Provisioning(registry, "p1"), Cloud.list
    provisioning.acquire(spec, 2)
    time.sleep(0.1)

    def late(cloud: Cloud, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        monkeypatch.setattr(Cloud, "list", real)
        found = cloud.list(pool, regions)
        assert provisioning.end(spec, 5) == []
        return found

    monkeypatch.setattr(Cloud, "list", late)
    provisioning.charge(spec)
    later(HOUR)
    assert account(registry).hourly == 0.0


def test_the_order_is_told_with_its_price_before_it_is_sent(registry: Registry, spec: PoolSpec) -> None:
    assert isinstance(spec.provider, Cloud)
    told: list[tuple[str, int]] = []

    def tell(text: str) -> None:
        told.append((text, len(spec.provider.machines())))

    Provisioning(registry, "p1").acquire(spec, 2, tell=tell)
    assert told == [("2 × small in here-a: $26.40 an hour", 0)]
    free = replace(spec, provider=replace(spec.provider, hourly=None))
    Provisioning(registry, "p2").acquire(free, 1, tell=tell)
    assert told[1][0] == "1 × small in here-a: price unknown"


def test_machines_that_were_replaced_count_too(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None]
) -> None:
    assert isinstance(spec.provider, Cloud)
    provisioning = Provisioning(registry, "p1")
    ids = provisioning.acquire(spec, 2)
    later(HOUR)
    spec.provider.vanish(ids[:1])
    provisioning.charge(spec)
    later(HOUR)
    assert provisioning.bill.now().total == near(3 * HOURLY)
    provisioning.begin()
    assert provisioning.acquire(spec, 2, ids)[1] == ids[1]
    later(HOUR)
    cost = provisioning.bill.now()
    assert (cost.total, cost.hourly) == (near(5 * HOURLY), 2 * HOURLY)
    totals = {one.id: one.total for one in cost.machines}
    assert (totals.pop(ids[0]), totals.pop(ids[1])) == (near(HOURLY), near(3 * HOURLY))
    assert list(totals.values()) == [near(HOURLY)]


def test_the_account_goes_on_with_a_later_manager(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None]
) -> None:
    assert isinstance(spec.provider, Cloud)
    ids = Provisioning(registry, "p1").acquire(spec, 2)
    later(HOUR)
    spec.provider.vanish(ids[:1])
    other = Registry()
    attached = Provisioning(other, "p1")
    attached.charge(spec)
    later(HOUR)
    assert attached.bill.now().total == near(3 * HOURLY)
    assert attached.end(spec, 5) == []
    other.close()
    assert account(registry).total == near(3 * HOURLY)


def test_what_a_dead_manager_left_is_counted_until_a_sweep_ends_it(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None]
) -> None:
    assert isinstance(spec.provider, Cloud)
    # The machines were made, and whoever had asked for them was gone: no row says that they were.
    spec.provider.plan("create", "interrupt-after")
    registry.intend("p1", "p", "cloud", 2, False)
    provisioning = Provisioning(registry, "p1")
    with pytest.raises(KeyboardInterrupt):
        provisioning.acquire(spec, 2)
    assert cost_rows.every(registry) == []
    later(HOUR)
    assert end_pool_machines(registry, "p1", 5) == []
    assert account(registry).total == near(2 * HOURLY)
    later(HOUR)
    assert account(registry).total == near(2 * HOURLY)


def test_a_stopped_machine_costs_its_disk_only(registry: Registry, later: Callable[[float], None]) -> None:
    cloud = Cloud("nowhere", hourly=HOURLY)
    bill = PoolBill(registry, "p1")
    running = MachineRecord("m1", "running", "p1", launched=time.time(), hourly=HOURLY)
    for state, began in (("running", None), ("stopped", None), ("running", "now")):
        launched = time.time() if began else running.launched
        bill.seen("p", cloud, [replace(running, state=state, launched=launched)])
        bill.price(cloud)
        later(HOUR)
        hourly = bill.now().hourly
        assert hourly == (DISK if state == "stopped" else HOURLY)
    bill.price(cloud)
    cost = bill.now()
    assert cost.total == near(2 * HOURLY + DISK)
    assert len(cost.machines) == 1
    assert account(registry).total == near(2 * HOURLY + DISK)


def test_an_unknown_price_is_said_and_is_not_nothing(
    registry: Registry, spec: PoolSpec, later: Callable[[float], None]
) -> None:
    bill = PoolBill(registry, "p1")
    bill.bought("p", "cloud", ["m1"], Order("p1", "t", Offer("odd", None, market="spot"), "here-a"))
    later(HOUR)
    cost = bill.now()
    assert (cost.total, cost.hourly, cost.unknown) == (None, None, 1)
    assert str(cost) == "price unknown"
    assert "price unknown" in cost_table.table(None)
    bill.bought("p", "cloud", ["m2"], Order("p1", "u", Offer("small", 2.0)))
    later(HOUR)
    assert str(bill.now()) == "$2.00 so far, $2.00 an hour, price of 1 machine unknown"


def test_prices_have_the_digits_that_matter() -> None:
    assert [pool_cost.rate(one) for one in (13.2, 0.526, 0.0416, 0.1, 1234.5)] == [
        *("$13.20", "$0.526", "$0.0416", "$0.10", "$1,234.50")
    ]
    assert [pool_cost.dollars(one) for one in (0.0, 0.004, 1.234, 1234.5)] == [
        *("$0.00", "under $0.01", "$1.23", "$1,234.50")
    ]


def test_the_table_has_ended_pools_too(registry: Registry, spec: PoolSpec, later: Callable[[float], None]) -> None:
    assert cost_table.table(None) == "no machine was ever bought for a pool"
    provisioning = Provisioning(registry, "p1")
    ids = provisioning.acquire(spec, 2)
    later(HOUR)
    provisioning.end(spec, 5)
    bill = PoolBill(registry, "p2")
    bill.bought("q", "cloud", ["m9"], Order("p2", "t", Offer("large", 0.0416, market="spot"), "there-a"))
    later(HOUR)
    heads, *rows, first, second = cost_table.table(None).splitlines()
    assert heads.split("  ")[0] == "pool"
    assert sorted(row.split()[:2] for row in rows) == sorted([["p", ids[0]], ["p", ids[1]], ["q", "m9"]])
    assert rows[2].split()[2:6] == ["large", "spot", "there-a", "$0.0416"]
    assert first == "pool p: $26.40 so far"
    assert second == "pool q: $0.04 so far, $0.0416 an hour"
    assert cost_table.table("q").splitlines()[-1] == second
