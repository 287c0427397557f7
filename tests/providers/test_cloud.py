"""Machines that are bought are never lost: whatever happens to a start, and whoever dies in it."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import PoolError, ProvisionError
from sky_jupyter.magics import clean, leftover_pools
from sky_jupyter.pool import end_without_manager
from sky_jupyter.pool.lifecycle import provisioning
from sky_jupyter.pool.lifecycle.provisioning import Provisioning
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry import cost_rows, machine_orders
from sky_jupyter.pool.registry.machine_orders import OrderRow
from sky_jupyter.pool.registry.machine_sweep import left_over, sweep_machines
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers.base import Order
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import DEFAULT_PROVISIONED_TTL, PoolSpec
from tests.pool.remote import wait_until
from tests.providers import starts
from tests.providers.bought import abandon, buy, pool_of
from tests.providers.cloud import Cloud
from tests.providers.starts import Start
from tests.took import Took

# So many starts, several beside each other.
DAILY, LONG, BESIDE = 30, 1000, 4


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(str(tmp_path / "cloud.sqlite"))


def seed(usual: int = 0) -> int:
    """Of the starts: SKY_STARTS_SEED, else the usual one, or another each time."""
    return int(os.environ.get("SKY_STARTS_SEED") or usual or random.SystemRandom().randrange(1 << 30))


def strike(registry: Registry, folder: Path, seed: int, count: int) -> None:
    """Do the starts, sweep, and see that no machine is left and that none was bought twice."""
    starts.do_all(folder, registry.path, seed, count, BESIDE)
    for number in range(count):
        Cloud(Start.of(seed, number).store(folder)).spare_the_sweeper()
    starts.sweep_up(registry)
    left, twice, made = [], [], 0
    bought: list[str] = []
    for number in range(count):
        start = Start.of(seed, number)
        cloud = Cloud(start.store(folder))
        made += len(cloud.machines())
        # One that goes by itself before anybody was told of it is in no account.
        vanishing = {pool for pool in cloud.pools() if "vanish" in {said for _, said in cloud.calls(pool)}}
        bought += [one.id for one in cloud.machines() if one.pool not in vanishing]
        if cloud.alive() or cloud.remains():
            left.append((start, [cloud.calls(pool) for pool in cloud.pools()]))
        # A start is one pool, and has never more machines than nodes, however often it asks for them.
        twice += [(start, cloud.calls(pool)) for pool in cloud.pools() if cloud.most_at_once(pool) > start.nodes]
    assert left == []
    assert twice == []
    # Each machine is in the account of its pool, and has an end there.
    counted = {row.machine: row for row in cost_rows.every(registry)}
    assert [row for row in counted.values() if row.ended is None] == []
    assert [id for id in bought if id not in counted] == []
    # Most starts come to the point where they buy.
    assert made > count


@pytest.mark.parametrize("fault", ["lost", "half-lost", "error", "throttled"])
def test_a_call_without_an_answer_is_sent_again_and_buys_nothing_twice(
    cloud: Cloud, registry: Registry, fault: str
) -> None:
    for _ in range(2):
        cloud.plan("create", fault)
    pool = pool_of(cloud, provision_retry_delay=0.01)
    told: list[str] = []
    ids = pool.lifecycle.provisioning.acquire(pool.spec, 2, tell=told.append)
    assert sorted(ids) == sorted(cloud.alive())
    assert len(set(ids)) == 2
    assert sum("the order is sent again" in line for line in told) == 2
    pool.down()
    assert cloud.alive() == []
    assert registry.pools() == []


def test_a_call_that_is_never_answered_fails_and_may_be_tried_anew(cloud: Cloud, registry: Registry) -> None:
    for _ in range(20):
        cloud.plan("create", "lost")
    pool = pool_of(cloud, provision_retry_delay=0.01)
    with pytest.raises(ProvisionError, match="did not answer") as raised:
        buy(pool)
    assert raised.value.passing
    assert len(cloud.machines()) == 2
    cloud.calm()
    assert sorted(buy(pool)) == sorted(cloud.alive())
    assert len(cloud.machines()) == 2
    pool.down()


def test_a_machine_that_was_made_before_a_refusal_is_adopted(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "lost")
    cloud.plan("create", "refused")
    pool = pool_of(cloud, provision_retry_delay=0.01)
    assert sorted(buy(pool)) == sorted(cloud.alive())
    assert len(cloud.machines()) == 2
    pool.down()


def test_machines_are_bought_where_there_are_some(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "refused")
    cloud.plan("create", "refused")
    pool = pool_of(cloud)
    buy(pool)
    assert {one.zone for one in cloud.machines()} == {"there-a"}
    rows = [(row.zone, row.state) for row in machine_orders.of(registry, pool.id) if row.token]
    assert rows == [("here-a", "refused"), ("here-b", "refused"), ("there-a", "made")]
    pool.down()


def test_each_refusal_is_told_in_a_line_of_the_start(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "refused")
    cloud.plan("create", "denied")
    pool = Pool(PoolSpec(provider=cloud, nodes=2, options=Options(console=False)))
    told: list[str] = []
    with pytest.raises(ProvisionError, match="authorized"):
        pool.start(lambda event: told.append(getattr(event, "text", "")))
    assert "here-a has no machine" in told


def test_a_quota_rules_out_its_region_and_stops_where_nothing_is_left(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "quota")
    pool = pool_of(cloud)
    buy(pool)
    assert {one.zone for one in cloud.machines()} == {"there-a"}
    pool.down()
    pool = pool_of(cloud)
    cloud.plan("create", "quota")
    cloud.plan("create", "quota")
    with pytest.raises(ProvisionError, match="here-a: the quota is used up; there-a: the quota") as raised:
        buy(pool)
    # Waiting does not help: nothing is asked again.
    assert not raised.value.passing
    with pytest.raises(ProvisionError, match="the quota is used up"):
        buy(pool)
    assert [said for call, said in cloud.calls(pool.id) if call == "create"] == ["quota", "quota"]
    pool.down()


def test_credentials_of_another_account_buy_nothing_for_a_pool_that_has_machines(
    registry: Registry, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    buy(pool := pool_of(cloud, 2))
    monkeypatch.setattr(Cloud, "account", lambda self: "somebody else")
    later = Provisioning(registry, pool.id)
    with pytest.raises(PoolError, match="of the account somebody, and the credentials here of somebody else"):
        later.acquire(pool.spec, 2)
    assert len(cloud.machines()) == 2


def test_only_the_nodes_are_kept_though_others_were_made_a_moment_ago(registry: Registry, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "slow.sqlite"), shown_after=60.0, visible_within=120.0)
    node, *others = buy(pool := pool_of(cloud, 3))
    pool.lifecycle.provisioning.keep_only(pool.spec, [node])
    assert cloud.alive() == [node]
    assert len(others) == 2


def test_what_a_call_makes_that_was_given_up_ends_when_it_returns(
    registry: Registry, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioning, "_PATIENCE", 0.05)
    (node,) = buy(pool := pool_of(cloud, 1))
    cloud.plan("create", "hang")
    with ThreadPoolExecutor(1) as beside:
        call = beside.submit(pool.lifecycle.provisioning.acquire, replace(pool.spec, nodes=2), 2, [node])
        wait_until(lambda: ("create", "hang") in cloud.calls(pool.id))
        pool.lifecycle.provisioning.keep_only(pool.spec, [node])
        assert not call.done()
        assert node in call.result(60)
    assert cloud.alive() == [node]
    # That was for this call alone.
    pool.lifecycle.provisioning.acquire(replace(pool.spec, nodes=2), 2, [node])
    assert len(cloud.alive()) == 2


def test_credentials_of_another_account_settle_nothing(
    cloud: Cloud, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(cloud, shutdown_timeout=0.3)
    buy(pool)
    monkeypatch.setattr(Cloud, "account", lambda self: "somebody else")
    pool.down()
    assert any("somebody, and the credentials here of somebody else" in text for text in pool.unended or ())
    assert machine_orders.of(registry, pool.id)
    monkeypatch.undo()
    monkeypatch.setenv("SKY_REGISTRY", str(registry.path))
    assert sweep_machines(registry).machines == 2
    assert cloud.alive() == []


def test_another_start_buys_only_what_is_dead(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 3)
    ids = buy(pool)
    assert buy(pool, ids) == ids
    cloud.vanish(ids[1:2])
    again = buy(pool, ids)
    assert (again[0], again[2]) == (ids[0], ids[2])
    assert again[1] not in ids
    assert len(cloud.machines()) == 4
    pool.down()
    assert cloud.alive() == []


def test_a_time_out_stops_the_buying_and_the_end_waits_for_it(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "refused")
    cloud.plan("create", "hang")
    options = Options(console=False, provision_timeout=0.5)
    pool = Pool(PoolSpec(provider=cloud, nodes=2, options=options))
    with pytest.raises(ProvisionError, match="provision_timeout"):
        pool.start()
    assert len(cloud.machines()) == 2
    assert cloud.alive() == []
    assert [said for call, said in cloud.calls(pool.id) if call == "create"] == ["refused", "hang"]
    assert registry.pools() == []


def test_the_intent_is_recorded_before_each_call(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "denied")
    pool = pool_of(cloud)
    sent: list[OrderRow] = []

    class Watched(Cloud):
        def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
            sent.extend(row for row in machine_orders.of(registry, order.pool) if row.token == order.token)
            return super().create(spec, count, order)

    spec = replace(pool.spec, provider=Watched(cloud.store))
    with pytest.raises(ProvisionError, match="authorized"):
        pool.lifecycle.provisioning.acquire(spec, 2)
    (row,) = sent
    assert (row.state, row.account, row.region, row.zone, row.count) == ("sent", "somebody", "here", "here-a", 2)
    assert json.loads(row.recipe) == cloud.recipe()
    assert row.until is not None
    assert row.until > time.time() + DEFAULT_PROVISIONED_TTL
    pool.down()


@pytest.mark.parametrize("ttl", [None, 7200.0])
def test_machines_have_a_deadline_that_a_sweep_keeps_whoever_manages_them(
    cloud: Cloud, registry: Registry, clock: Callable[[float], None], ttl: float | None
) -> None:
    pool = pool_of(cloud, 2, ttl)
    first = buy(pool)
    life = ttl or 24 * 3600.0
    clock(time.time() + life - 60)
    # What is bought later ends with the pool as well.
    cloud.vanish(first[:1])
    buy(pool, first)
    deadlines = {one.until for one in cloud.machines()} | {row.until for row in machine_orders.of(registry, pool.id)}
    (deadline,) = deadlines
    assert deadline is not None
    assert pool.expiry.ttl == life
    # The pool has ended by then.
    left = pool.lifecycle.provisioning.left(pool.spec)
    assert left is not None
    assert time.time() + left < deadline
    clock(deadline - 30)
    assert sweep_machines(registry).machines == 0
    assert len(cloud.alive()) == 2
    clock(deadline + 1)
    assert sweep_machines(registry).machines == 2
    assert cloud.alive() == []
    pool.down()


def test_a_pool_says_when_its_machines_end_unless_it_was_told(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "denied")
    cloud.plan("create", "denied")
    told: list[str] = []
    for ttl in (None, 7200.0):
        pool = Pool(PoolSpec(provider=cloud, ttl=ttl, options=Options(console=False)))
        with pytest.raises(ProvisionError, match="authorized"):
            pool.start(lambda event: told.append(getattr(event, "text", "")))
    assert [text for text in told if "at the latest" in text] == [
        "the machines that are made for this pool end with it, after 24 h at the latest"
    ]
    assert PoolSpec(provider=sky.Local()).lifetime is None


def test_a_pool_is_ending_until_its_machines_were_seen_going(cloud: Cloud, registry: Registry, took: Took) -> None:
    pool = pool_of(cloud, shutdown_timeout=0.3)
    ids = buy(pool)
    for _ in range(20):
        cloud.plan("destroy", "error")
    told: list[str] = []
    pool.down(told.append)
    assert sorted(pool.unended or ()) == sorted(ids)
    assert any(ids[0] in text and "%sky clean" in text for text in told)
    (row,) = registry.pools()
    assert (row.state, row.owner) == ("ending", 0)
    took.row(
        "machines that were made for a pool cannot be ended just now",
        see="which ones; the pool stays listed as `ending`; `%load_ext`, the server and `%sky clean` try again",
        kept="-",
    )
    cloud.calm()
    swept = sweep_machines(registry)
    assert (swept.pools, swept.machines, swept.failed) == (["bought"], 2, {})
    assert cloud.alive() == []
    assert registry.pools() == []


def test_what_is_bought_after_the_end_was_given_up_is_ended(cloud: Cloud, registry: Registry) -> None:
    cloud.plan("create", "hang")
    options = Options(console=False, provision_timeout=0.2, shutdown_timeout=0.2)
    pool = Pool(PoolSpec(provider=cloud, nodes=2, options=options))
    with pytest.raises(ProvisionError, match="provision_timeout"):
        pool.start()
    assert pool.unended != []
    wait_until(lambda: cloud.machines() and not cloud.alive())
    starts.sweep_up(registry)
    assert registry.pools() == []


def test_an_interrupt_of_the_end_leaves_no_machine(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud)
    buy(pool)
    cloud.plan("destroy", "error")
    cloud.plan("destroy", "interrupt-after")
    with pytest.raises(KeyboardInterrupt):
        pool.down()
    wait_until(lambda: registry.pools() == [])
    assert cloud.alive() == []


def test_one_unknown_id_spoils_nothing_for_the_others(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 3)
    buy(pool)
    cloud.plan("destroy", "unknown")
    pool.down()
    assert cloud.alive() == []
    assert registry.pools() == []


def test_the_next_notebook_ends_what_a_dead_one_has_bought_and_says_so(
    cloud: Cloud, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = pool_of(cloud)
    buy(pool)
    abandon(registry, pool)
    (line,) = leftover_pools.news()
    assert "machines that were made for it are being ended" in line
    wait_until(lambda: registry.pools() == [])
    assert cloud.alive() == []
    assert registry.pools() == []


def test_clean_ends_what_nobody_else_would_and_leaves_pools_that_live(cloud: Cloud, registry: Registry) -> None:
    alive = pool_of(cloud, 1)
    kept = buy(alive)
    pool = pool_of(cloud)
    buy(pool)
    abandon(registry, pool)
    assert clean.machines() == ["pool bought: all machines that were made for it have ended"]
    assert cloud.alive() == kept
    assert clean.machines() == []
    alive.down()


def test_machines_of_another_computers_pool_stay_however_long_nobody_here_has_heard_of_it(
    cloud: Cloud, registry: Registry
) -> None:
    pool = pool_of(cloud)
    kept = buy(pool)
    registry.update(pool.id, "ready")
    with registry.transaction() as connection:
        connection.execute(
            "UPDATE pools SET machine = 'elsewhere', machine_place = 'm/b/p', began = 0, owner_since = 0"
        )
    assert registry.pools() == []
    assert left_over(registry) == clean.machines() == []
    assert sorted(cloud.alive()) == sorted(kept)


def test_down_by_name_ends_the_machines_of_a_pool_that_cannot_be_taken_up(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud)
    buy(pool)
    abandon(registry, pool)
    assert end_without_manager.end_named("bought") == "pool bought: ended"
    assert cloud.alive() == []
    assert registry.pools() == []


def test_machines_past_their_time_are_ended_whoever_made_them(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 1)
    (mine,) = buy(pool)
    offer = cloud.offers(pool.spec)[0]
    past, later = time.time() - 1, time.time() + 1000
    cloud.create(pool.spec, 1, Order("of-another-laptop", "a", offer, "here-a", past))
    (other,) = cloud.create(pool.spec, 1, Order("of-another-laptop", "b", offer, "here-a", later))
    (unknown,) = cloud.create(pool.spec, 1, Order("of-another-laptop", "c", offer, "here-a", None))
    time.sleep(cloud.visible_within)
    sweep_machines(registry)
    assert sorted(cloud.alive()) == sorted([mine, other, unknown])
    pool.down()


def test_a_provider_that_is_not_installed_here_is_named(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud)
    buy(pool)
    abandon(registry, pool)
    with sqlite3.connect(registry.path) as connection:
        connection.execute("UPDATE orders SET provider = 'nimbus'")
    assert "no provider 'nimbus' is installed here" in sweep_machines(registry).failed["bought"]
    assert len(cloud.alive()) == 2
    with sqlite3.connect(registry.path) as connection:
        connection.execute("UPDATE orders SET provider = 'cloud'")
    assert sweep_machines(registry).pools == ["bought"]


def test_no_machine_is_left_or_bought_twice_whatever_happens_to_a_start(
    registry: Registry, tmp_path: Path, took: Took
) -> None:
    strike(registry, tmp_path, seed(2026), DAILY)
    took.row(
        "the notebook or its link is killed or interrupted, an answer is lost, a call fails or takes too long, while "
        "machines are made for a pool",
        see="what went wrong; in the next notebook, that machines which nobody else would end are being ended",
        kept="no machine is bought twice, and none is left",
    )


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_no_machine_is_left_or_bought_twice_in_a_thousand_starts(registry: Registry, tmp_path: Path) -> None:
    strike(registry, tmp_path, seed(), LONG)
