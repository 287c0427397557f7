"""``%sky sweep``: what was bought and is of no pool any more ends; what others have is left, and said."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from sky_jupyter.errors import PoolError
from sky_jupyter.magics import sweep
from sky_jupyter.magics.parsing import parse
from sky_jupyter.pool.registry import provider_accounts
from sky_jupyter.pool.registry.machine_sweep import sweep_machines
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import pool_listing
from sky_jupyter.providers.base import Order
from sky_jupyter.session.pools import attach_pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.magics.notebook import notebook
from tests.pool.remote import wait_until
from tests.programs import ROOT
from tests.providers.bought import abandon, buy, pool_of
from tests.providers.cloud import STORE, Cloud
from tests.providers.distribution import install


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(str(tmp_path / "cloud.sqlite"))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    made = Registry()
    yield made
    made.close()


def buy_aside(cloud: Cloud, owner: str, until: float | None, name: str = "theirs", zone: str = "here-a") -> str:
    """Buy a machine that no registry knows."""
    offer = cloud.offers(PoolSpec(provider=cloud))[0]
    order = Order("0a0b0c0d", f"{owner}{until}{zone}", offer, zone, until, owner, name)
    (id,) = cloud.create(PoolSpec(provider=cloud), 1, order)
    time.sleep(cloud.visible_within)
    return id


def swept(chosen: str | None = None, provider: Cloud | None = None, *, all_regions: bool = False) -> list[str]:
    return list(sweep.lines(chosen, provider, all_regions=all_regions))


def test_it_ends_what_is_past_its_time_or_without_a_pool_and_says_what_it_was(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 1)
    (kept,) = buy(pool)
    later = time.time() + 3600
    past = buy_aside(cloud, "another/1234abcd", time.time() - 60)
    lost = buy_aside(cloud, provider_accounts.owner(registry), later)
    other = buy_aside(cloud, "another/1234abcd", later)
    lines = swept()
    assert sorted(cloud.alive()) == sorted([kept, other])
    told = {re.findall(r"m-[0-9a-f]{12}", line)[0]: line for line in lines}
    assert re.match(r"ended: m-.* \(small, here-a, since \d\d:\d\d.*\): its time was over at \d\d:\d\d$", told[past])
    assert told[lost].endswith(": no pool of this computer has it")
    assert told[other].startswith(f"left: {other} ")
    assert "made for pool theirs (0a0b0c0d) by another/1234abcd; until " in told[other]
    assert told[kept].endswith("of pool bought, which this computer has: `%sky down` ends it")
    pool.down()


def test_what_machines_leave_that_have_ended_by_themselves_is_removed(tmp_path: Path, registry: Registry) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"), leaves=True)
    pool = pool_of(cloud)
    ours = buy(pool)
    lost = buy_aside(cloud, provider_accounts.owner(registry), time.time() + 3600)
    other = buy_aside(cloud, "another/1234abcd", time.time() + 3600)
    # As pods do whose lease is over.
    cloud.vanish([*ours, lost, other])
    wait_until(lambda: len(cloud.remains()) == 4)
    told = swept()
    assert any(line.startswith(f"ended: {lost} ") for line in told)
    assert sorted(cloud.remains()) == sorted([*ours, other])
    pool.down()
    assert cloud.remains() == [other]


def test_sweeps_remove_what_an_abandoned_pools_machines_leave(tmp_path: Path, registry: Registry) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"), leaves=True)
    pool = pool_of(cloud)
    cloud.vanish(buy(pool))
    wait_until(lambda: len(cloud.remains()) == 2)
    abandon(registry, pool)
    sweep_machines(registry)
    assert cloud.remains() == []


def test_a_pool_of_another_computer_is_ended_by_its_name_and_one_that_is_here_is_not(
    cloud: Cloud, registry: Registry
) -> None:
    pool = pool_of(cloud, 1)
    kept = buy(pool)
    buy_aside(cloud, "another/1234abcd", time.time() + 3600)
    assert any("asked for" in line for line in swept("theirs"))
    assert cloud.alive() == kept
    swept("bought")
    assert cloud.alive() == kept
    pool.down()


def test_a_name_that_several_pools_have_ends_none_of_them(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 1)
    kept = buy(pool)
    buy_aside(cloud, "another/1234abcd", time.time() + 3600, name="bought")
    before = cloud.alive()
    with pytest.raises(PoolError, match=r"several pools are named 'bought': give the id of one.*by another/1234abcd"):
        swept("bought")
    assert cloud.alive() == before
    assert any("asked for" in line for line in swept("0a0b0c0d"))
    assert cloud.alive() == kept
    pool.down()


def test_it_looks_where_machines_were_bought_or_in_all_regions(cloud: Cloud, registry: Registry) -> None:
    pool = pool_of(cloud, 1)
    buy(pool)
    pool.down()
    far = buy_aside(cloud, provider_accounts.owner(registry), time.time() + 3600, zone="there-a")
    assert swept() == ["cloud: no machine of ours is there"]
    assert cloud.alive() == [far]
    assert any(far in line for line in swept(all_regions=True))
    assert cloud.alive() == []


def test_it_asks_a_provider_that_nothing_was_bought_from_when_told(cloud: Cloud, registry: Registry) -> None:
    past = buy_aside(cloud, "", time.time() - 1)
    assert "no machine was ever bought from here" in swept()[0]
    assert cloud.alive() == [past]
    assert any(past in line for line in swept(provider=cloud))
    assert cloud.alive() == []


def test_pools_whose_notebook_died_are_ended_with_what_they_cost(cloud: Cloud, registry: Registry) -> None:
    priced = Cloud(cloud.store, hourly=3600.0)
    pool = pool_of(priced)
    buy(pool)
    abandon(registry, pool)
    (line,) = (line for line in swept() if line.startswith("pool"))
    assert re.fullmatch(r"pool bought: all machines that were made for it have ended; it has cost \$\d+\.\d\d", line)
    assert cloud.alive() == []


def test_what_does_not_end_or_answer_is_an_error(
    cloud: Cloud, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(cloud, 1)
    buy(pool)
    pool.down()
    past = buy_aside(cloud, "", time.time() - 1)
    monkeypatch.setattr(sweep, "SWEEP_LIMIT", 0.2)
    for _ in range(20):
        cloud.plan("destroy", "error")
    with pytest.raises(PoolError, match=past):
        swept()
    cloud.calm()
    cloud.plan("list", "error")
    with pytest.raises(PoolError, match="the connection broke"):
        swept()
    swept()
    assert cloud.alive() == []


def test_sweeps_in_the_background_ask_a_provider_now_and_then_after_its_last_pool(
    cloud: Cloud, registry: Registry
) -> None:
    pool = pool_of(cloud, 1)
    buy(pool)
    pool.down()
    lost = buy_aside(cloud, provider_accounts.owner(registry), time.time() + 3600)
    assert sweep_machines(registry).machines == 1
    assert lost not in cloud.alive()
    asked = len(cloud.calls(""))
    sweep_machines(registry)
    assert len(cloud.calls("")) == asked


def test_another_registry_of_this_computer_does_not_end_what_a_pool_has(
    cloud: Cloud, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(cloud, 1)
    kept = buy(pool)
    time.sleep(cloud.visible_within)
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "of-another-user.sqlite"))
    (line,) = swept(provider=cloud)
    assert line.startswith("left: ")
    assert cloud.alive() == kept
    pool.down()


def test_pools_of_other_computers_are_listed_and_attaching_says_where_their_keys_are(
    cloud: Cloud, registry: Registry
) -> None:
    pool = pool_of(cloud, 2)
    buy(pool)
    buy_aside(cloud, "laptop2/1234abcd", time.time() + 3600)
    mine, theirs = pool_listing.pools(cloud)
    assert (mine.id, mine.name, mine.nodes) == (pool.id, "bought", 2)
    assert (theirs.id, theirs.name, theirs.nodes, theirs.owner) == ("0a0b0c0d", "theirs", 1, "laptop2/1234abcd")
    assert mine.since is not None
    assert mine.since <= (theirs.since or 0.0)
    assert mine.hourly == pytest.approx(2 * cloud.hourly)
    assert "1 × small in here-a; running; since " in str(theirs)
    for name in ("theirs", "0a0b0c0d"):
        with pytest.raises(PoolError, match=r"Its keys are on laptop2 alone.*`%sky sweep 0a0b0c0d` ends its machines"):
            attach_pool(name)
    with pytest.raises(PoolError, match="no kept pool 'nobody' is running"):
        attach_pool("nobody")
    pool.down()


def test_loading_the_extension_ends_what_is_lost_and_who_buys_nothing_has_no_boto(
    cloud: Cloud, registry: Registry, tmp_path: Path
) -> None:
    pool = pool_of(cloud, 1)
    buy(pool)
    pool.down()
    past = buy_aside(cloud, "", time.time() - 1)
    install(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with notebook(tmp_path, SKY_REGISTRY=str(registry.path), PYTHONPATH=path, **{STORE: cloud.store}) as book:
        # The tests' cloud cannot be imported in a thread, as a provider is.
        assert book.run("import tests.providers.cloud").status == "ok"
        assert book.run("%load_ext sky_jupyter").status == "ok"
        wait_until(lambda: past not in cloud.alive())
        later = buy_aside(cloud, "", time.time() - 1)
        assert f"ended: {later}" in book.run("%sky sweep --provider cloud").stream()
        assert book.run("import sys; print('boto3' in sys.modules)").stream() == "False\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sweep a b", "sweep takes one NAME"),
        ("sweep --nodes 2", "unknown option --nodes"),
        ("sweep --all", "--all-regions"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(line: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parse(line, cell=False)
