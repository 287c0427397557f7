"""`Compute` as a person uses it: pools by name, their ends, several ways to have one, and beside an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.api.spec_fallbacks import first_of, price
from sky_jupyter.errors import BootstrapError, PoolError, ProvisionError, SpecError
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import Local
from sky_jupyter.providers.base import Offer, Order
from sky_jupyter.session.pools import restart_pool, start_pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.conftest import pool_folders

PATIENCE = 120.0


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@sky.function
def where() -> tuple[int, int, int, int, bool]:
    info = sky.instance_info()
    return info.node, info.total_nodes, info.rank, info.world_size, info.is_head


@dataclass(frozen=True)
class Market(Local):
    """Local nodes that have a price, and may be sold out for so many attempts."""

    kind = "local"
    supported_options = ("region", "max_hourly_cost")
    provisions = True

    hourly: float | None = 0.0
    sold_out: int = 0
    asked: list[float] = field(default_factory=list, compare=False)

    visible_within = 0.0
    power_file = ""

    def account(self) -> str:
        return "somebody"

    def recipe(self) -> dict[str, float | None]:
        return {"hourly": self.hourly}

    def offers(self, spec: PoolSpec) -> list[Offer]:
        return [Offer("a stall", self.hourly), Offer("another", None)]

    def create(self, spec: PoolSpec, count: int, order: Order) -> Any:
        self.asked.append(time.monotonic())
        if len(self.asked) <= self.sold_out:
            error = ProvisionError("sold out")
            error.passing = True
            raise error
        return super().create(spec, count, order)

    def __str__(self) -> str:
        return f"market at {self.hourly}"


@pytest.fixture(scope="module")
def shared() -> Iterator[sky.Compute]:
    with sky.Compute(nodes=2, name="shared", options=sky.Options(cluster=False, console=False)) as pool:
        yield pool


def specs(*providers: Market, **options: Any) -> list[PoolSpec]:
    return [PoolSpec(provider, name="chosen", options=sky.Options(**options)) for provider in providers]


def test_no_time_ends_a_pool_but_of_machines_that_are_made_for_it() -> None:
    for ttl in (None, 0):
        lives = [sky.Compute(provider=one, ttl=ttl).spec.lifetime for one in (Local(), sky.SSH("gpu1"), Market())]
        assert lives == [None, None, 24 * 3600]


# -- several ways to have a pool -------------------------------------------------------------------


def test_the_cheapest_is_tried_first_and_one_without_a_price_last() -> None:
    markets = [Market(hourly=None), Market(hourly=3.0), Market(hourly=0.5), Market(hourly=0.5)]
    tried: list[PoolSpec] = []

    def refuse(spec: PoolSpec) -> None:
        tried.append(spec)
        raise ProvisionError(f"no {spec.provider}")

    told: list[str] = []
    with pytest.raises(ProvisionError) as caught:
        first_of(specs(*markets), refuse, told.append)
    assert [id(spec.provider) for spec in tried] == [id(markets[number]) for number in (2, 3, 1, 0)]
    assert told[0] == "spec 3 of 4 (market at 0.5) is not available: no market at 0.5; trying market at 0.5"
    assert str(caught.value).splitlines() == [
        "none of the 4 specs of pool 'chosen' is available",
        *(f"  spec {number + 1} of 4 ({market}): no {market}" for number, market in enumerate(markets)),
    ]
    tried.clear()
    with pytest.raises(ProvisionError):
        first_of(specs(*markets, selection="first"), refuse, told.append)
    assert [id(spec.provider) for spec in tried] == list(map(id, markets))


def test_a_spec_that_its_provider_refuses_is_told_before_the_next_is_tried() -> None:
    dear, cheap = specs(Market(hourly=3.0), Market(hourly=0.5))
    told: list[str] = []
    made = first_of(
        [dataclasses.replace(dear, max_hourly_cost=2.5), cheap], lambda spec: (spec, list(told)), told.append
    )
    assert made == (cheap, told)
    (line,) = told
    assert line.startswith("spec 1 of 2 (market at 3.0) is not available: the cheapest of market at 3.0 is $3 an hour")
    assert line.endswith("; trying market at 0.5")


def test_what_costs_more_than_it_may_is_not_had() -> None:
    dear = dataclasses.replace(specs(Market(hourly=3.0))[0], max_hourly_cost=2.5, nodes=2)
    with pytest.raises(ProvisionError, match=r"\$3 an hour, and max_hourly_cost is \$2.5"):
        price(dear)
    assert price(dataclasses.replace(dear, max_hourly_cost=3)) == 6.0


def test_an_error_that_is_no_want_of_machines_is_raised_at_once() -> None:
    def refuse(spec: PoolSpec) -> None:
        raise SpecError("wrong")

    with pytest.raises(SpecError, match="wrong"):
        first_of(specs(Market(), Market()), refuse, print)


@pytest.mark.slow
def test_the_next_spec_is_had_where_one_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = sky.Spec(sky.SSH(["127.0.0.1:1"], accept_host_keys=True))
    with sky.Compute(nowhere, sky.Spec(Local(), ttl="1h"), nodes=1, region="eu") as pool:
        assert (pool.spec.provider, pool.spec.ttl, pool.spec.region) == (Local(), 3600.0, "eu")
        assert where() >> pool == (0, 1, 0, 1, True)
    said = capsys.readouterr()
    assert "spec 1 of 2 (ssh (127.0.0.1:1)) is not available: 127.0.0.1" in said.out
    assert "(region has no meaning on local nodes)" in said.err
    with pytest.raises(SpecError, match="the specs name their providers"):
        sky.Compute(nowhere, provider=Local())
    with pytest.raises(SpecError, match=r"Compute takes sky.Spec\(…\) without a name"):
        sky.Compute(Local())  # type: ignore[arg-type]


# -- names and ends --------------------------------------------------------------------------------


@pytest.mark.slow
def test_blocks_without_a_name_have_pools_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = sky.Options(console=False)
    with sky.Compute(options=options) as one, sky.Compute(options=options) as other:
        assert (one.spec.name, other.spec.name) == ("compute", "compute-2")
        with pytest.raises(PoolError, match="is live already: it is one pool for one block"):
            one.__enter__()
        sky.function(lambda: print("unseen"))() >> other
    assert capsys.readouterr() == ("", "")
    assert not [pool for pool in pools.all() if pool.spec.name.startswith("compute")]


def test_the_end_of_what_has_no_name_and_was_not_started_ends_nobody_elses_pool(
    shared: sky.Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the pool of another block without a name.
    monkeypatch.setattr("sky_jupyter.api.compute.UNNAMED", "shared")
    sky.Compute().down()
    assert where() @ shared
    assert pools.get("shared") is shared.pool


def test_a_block_joins_the_pool_of_its_name_and_leaves_it(shared: sky.Compute) -> None:
    with sky.Compute(name="shared") as any_spec:
        assert any_spec.pool is shared.pool
        assert any_spec.spec.nodes == 2
    alone = sky.Options(cluster=False)
    with sky.Compute(nodes=2, name="shared", options=alone) as same:
        assert same.pool is shared.pool
    assert same.pool is None
    assert shared.pool is not None
    assert shared.pool.state == "ready"
    with (
        pytest.raises(PoolError, match="'shared' is running with another spec: nodes: 2 -> 3"),
        sky.Compute(nodes=3, name="shared", options=alone),
    ):
        pass


@pytest.mark.slow
def test_a_pool_of_the_magics_is_joined_and_has_the_images_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("words.txt", "model.ckpt", "raw/one.txt", "deep/raw.txt"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    image = sky.Image(includes=[str(data)], excludes=["*.ckpt", "raw/"])
    live = start_pool(PoolSpec(provider=Local(), name="magic"))
    try:
        with sky.Compute(provider=Local(), name="magic", image=image) as pool:

            @sky.function
            def there(path: str) -> list[str]:
                folder = sky.included(path)
                return sorted(str(found.relative_to(folder)) for found in folder.rglob("*.*"))

            assert there(str(data)) >> pool == ["deep/raw.txt", "words.txt"]
        with sky.Compute(name="magic") as pool:
            assert pool.pool is live
            assert pools.current is live
    finally:
        sky.Compute(name="magic").down()
    assert live.state == "ended"
    assert pools.get("magic") is None


def test_a_kept_pool_outlives_its_block_and_its_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sky_jupyter as sky
        with sky.Compute(nodes=1, name="lasting", keep=True, ttl="1h") as pool:
            print(pool.pool.id)
        with sky.Compute(name="lasting") as again:
            print(again.pool.id)
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sky.__file__).parents[1])}
    said = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=True).stdout
    (id,) = set(said.split())
    with sky.Compute(nodes=1, name="lasting", keep=True, ttl="1h") as pool:
        assert pool.pool is not None
        assert pool.pool.id == id
        assert pool.pool.expiry.left is not None
        assert 3000 < pool.pool.expiry.left < 3600
    sky.Compute(name="lasting").down()
    assert not pool_folders(id)


@pytest.mark.slow
def test_a_pool_that_another_process_has_kept_with_another_spec_is_ended_where_that_is_asked_for() -> None:
    program = textwrap.dedent("""
        import sky_jupyter as sky
        print(sky.Compute(nodes=1, name="kept-anew", keep=True).start().pool.id)
        """)
    env = {**os.environ, "PYTHONPATH": str(Path(sky.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    other = sky.Compute(nodes=2, name="kept-anew", keep=True)
    try:
        assert len(where() @ other.start(anew=True)) == 2
        assert not pool_folders(said.strip())
    finally:
        other.down()


def test_a_kept_pool_without_a_console_is_attached_and_restarted_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = sky.Compute(nodes=1, name="silent", keep=True, options=sky.Options(console=False))
    try:
        with made as pool:
            first = pool.pool
        assert first is not None
        # As if its process had ended.
        first.release()
        pools.discard(first)
        with sky.Compute(name="silent") as pool:
            assert pool.pool is not None
            assert pool.pool is not first
            restart_pool(pool.pool)
            assert sky.function(print)("said") >> pool is None
        assert capfd.readouterr() == ("", "")
    finally:
        sky.Compute(name="silent").down()


# -- how long it lives -----------------------------------------------------------------------------


def test_a_pools_time_is_over_whatever_it_does() -> None:
    for ttl in (8, 60):
        try:
            pool = sky.Compute(name="brief", ttl=ttl).start()
            break
        except sky.SkyError:
            # On a busy machine its time may be over before its start is.
            assert ttl == 8
    live = pool.pool
    assert live is not None
    with pytest.raises(sky.SkyError, match=rf"its ttl of {ttl} s is over"):
        sky.function(lambda: time.sleep(600))() >> pool
    wait_until(lambda: live.state == "ended" and not pool_folders(live.id))
    with pytest.raises(PoolError, match=f"has ended: its ttl of {ttl} s is over"):
        where() >> pool


def test_nodes_end_by_themselves_when_their_time_is_over_and_nobody_is_there(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        import sky_jupyter as sky
        pool = sky.Compute(nodes=1, name="orphan", keep=True, ttl=int(sys.argv[1])).start()
        print(pool.pool.id, pool.pool.hosts[0].process.identity[0], flush=True)
        os._exit(0)
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sky.__file__).parents[1])}
    for ttl in ("12", "60"):
        done = subprocess.run([sys.executable, program, ttl], env=env, capture_output=True, text=True)
        if done.returncode == 0:
            # On a busy machine its time may be over before its start is.
            break
    assert done.returncode == 0, done.stderr
    id, host = done.stdout.split()
    wait_until(lambda: not psutil.pid_exists(int(host)) and not pool_folders(id))


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_kept_pool_that_was_killed_gives_way_to_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os
        import sky_jupyter as sky
        pool = sky.Compute(nodes=1, name="unseen", keep=True).start()
        print(pool.pool.id, pool.pool.hosts[0].process.identity[0], flush=True)
        os._exit(0)
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sky.__file__).parents[1])}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=True)
    id, host = done.stdout.split()

    def end() -> None:
        psutil.Process(int(host)).kill()
        wait_until(lambda: not psutil.pid_exists(int(host)))

    if when == "before":
        end()
    else:

        def end_and_fail(*_: object, **__: object) -> None:
            # As a host that ends does.
            for folder in pool_folders(id):
                shutil.rmtree(folder)
            end()
            raise PoolError("it is gone")

        monkeypatch.setattr("sky_jupyter.session.pools.attach_pool", end_and_fail)

    with sky.Compute(nodes=1, name="unseen", keep=True) as pool:
        assert pool.pool is not None
        assert pool.pool.id != id
        assert where() >> pool == (0, 1, 0, 1, True)
        pool.down()
    assert not pool_folders(id)


# -- options ---------------------------------------------------------------------------------------


def test_nodes_that_stand_alone_are_worlds_of_their_own(shared: sky.Compute) -> None:
    assert where() @ shared == [(0, 2, 0, 1, True), (1, 2, 0, 1, False)]
    assert (where() >> shared)[3] == 1
    whole = sky.function(lambda: (sky.shard([1, 2, 3]), sky.instance_info().peers))
    assert whole() @ shared == [([1, 2, 3], ())] * 2
    ports = sky.function(lambda: sky.instance_info().head_port)() @ shared
    assert len(set(ports)) == 2
    with pytest.raises(PoolError, match="no Dask workers: its nodes are independent"):
        _ = shared.dask


def test_machines_are_asked_for_again_after_a_while(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    log = tmp_path / "pool.log"
    market = Market(sold_out=2)
    options = sky.Options(provision_retry_delay=0.2, console=False, logging=sky.LogConfig("INFO", str(log)))
    with (
        caplog.at_level(logging.INFO, "sky_jupyter"),
        sky.Compute(provider=market, name="sold", options=options) as pool,
    ):
        assert len(market.asked) == 3
        assert where() >> pool == (0, 1, 0, 1, True)
        assert all(later - sooner >= 0.2 for sooner, later in zip(market.asked, market.asked[1:], strict=False))
    told = [record.getMessage() for record in caplog.records]
    assert "pool sold: sold out; attempt 2 of 3 in 0.2 s" in told
    assert "pool sold: 1 nodes, 1 ranks ready" in told
    # Who asks for INFO of all loggers hears nothing of each cell.
    assert not [text for text in told if ": run " in text]
    assert told[-1] == "pool sold: ended"
    assert [line.partition("INFO ")[2] for line in log.read_text().splitlines()] == told
    asked = Market(sold_out=9)
    few = sky.Options(max_provision_attempts=2, provision_retry_delay=0, console=False)
    with caplog.at_level(logging.ERROR), pytest.raises(ProvisionError, match="sold out"):
        sky.Compute(provider=asked, options=few).start()
    assert "pool compute: not started: sold out" in caplog.text
    assert len(asked.asked) == 2
    long = sky.Options(max_provision_attempts=9, provision_retry_delay=30, provision_timeout=0.3, console=False)
    late = r"not done within 0.3 s \(Options\(provision_timeout=0.3\)\)"
    with pytest.raises(ProvisionError, match=late), sky.Compute(provider=Market(sold_out=9), options=long):
        pass


def test_preparing_nodes_has_its_time_and_nothing_of_it_goes_on() -> None:
    mark = f"{60 + os.getpid() / 1e7:.7f}"
    slow = sky.Plugin.create("slow").with_bootstrap(lambda spec: [["sleep", mark]])
    options = sky.Options(bootstrap_timeout=1.0, console=False)
    with pytest.raises(BootstrapError, match=r"Options\(bootstrap_timeout=1\)"):
        sky.Compute(plugins=[slow], options=options).start()
    wait_until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])])


def test_the_end_has_its_time_too(caplog: pytest.LogCaptureFixture) -> None:
    options = sky.Options(shutdown_timeout=0.05, console=False)
    pool = sky.Compute(name="slow-end", options=options).start().pool
    assert pool is not None
    host = psutil.Process(pool.hosts[0].process.identity[0])
    with caplog.at_level(logging.INFO, "sky_jupyter"):
        host.suspend()
        pool.down()  # the host stands still: whoever waited for it would wait for ever
    assert any("did not end within 0.05 s" in record.getMessage() for record in caplog.records)
    # It is killed beside what follows.
    wait_until(lambda: not host.is_running() and not pool_folders(pool.id))


# -- beside an event loop --------------------------------------------------------------------------


@pytest.mark.slow
def test_other_tasks_go_on_while_a_pool_starts_and_ends() -> None:
    async def program() -> int:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.02)

        beating = asyncio.create_task(beat())
        async with sky.Compute(name="beside", options=sky.Options(console=False)) as pool:
            during = beats
            assert await asyncio.to_thread(lambda: where() >> pool) == (0, 1, 0, 1, True)
        assert beats > during
        beating.cancel()
        return during

    assert asyncio.run(program()) > 1
    assert pools.get("beside") is None


def test_a_start_that_is_given_up_leaves_nothing() -> None:
    async def program() -> None:
        async with sky.Compute(name="given-up", options=sky.Options(console=False)):
            pytest.fail("it was given up")

    async def given_up() -> None:
        task = asyncio.create_task(program())
        while not pools.starting:  # noqa: ASYNC110 - what is waited for is a thread's
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(given_up())
    assert not pools.starting
    registry = Registry()
    try:
        assert not [row for row in registry.pools() if row.name == "given-up"]
    finally:
        registry.close()
    assert threading.active_count() < 50


# -- dask ------------------------------------------------------------------------------------------


def test_dask_runs_in_plain_workers_that_end_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    array = pytest.importorskip("dask.array")
    given_up: list[Any] = []

    def interrupted(client: Any, *_: object, **__: object) -> None:
        given_up.append(client)
        raise KeyboardInterrupt

    with sky.Compute(nodes=2, name="dasked", options=sky.Options(console=False)) as pool:
        with monkeypatch.context() as patch:
            patch.setattr("distributed.Client.wait_for_workers", interrupted)
            with pytest.raises(KeyboardInterrupt):
                _ = pool.dask
        # A wait for workers that is interrupted leaves no client.
        assert [client.status for client in given_up] == ["closed"]
        client = pool.dask
        assert pool.dask is client
        ours = {os.getpid(), *(psutil.Process(pid).pid for pid in sky.function(os.getpid)() @ pool)}
        workers = set(client.run(os.getpid).values())
        assert len(workers) == 2
        assert client.submit(os.getpid, pure=False).result() in workers
        assert not workers & ours
        assert client.compute(array.ones((300, 200), chunks=50).sum()).result() == 60000.0
        with client.as_current():
            assert float(array.arange(10, chunks=5).sum().compute()) == 45.0
        # The control plane knows nothing of them.
        assert pool.pool is not None
        assert len(pool.pool.status()) == 2
        host = psutil.Process(pool.pool.hosts[0].process.identity[0])
        assert workers < {child.pid for child in host.children(recursive=True)}
        # An agent that is new has a new worker when it is asked for.
        control = pool.pool.control
        assert control is not None
        before = dict(control.incarnations)
        # Not `scheduler_info`, whose answer the client's own refresh may replace by one without workers.
        scheduled = client.sync(client.scheduler.identity, n_workers=-1)
        names = {facts["name"]: address for address, facts in scheduled["workers"].items()}
        killed = client.run(os.getpid)[names["node-1"]]
        psutil.Process(psutil.Process(killed).ppid()).kill()
        wait_until(lambda: control.incarnations.get(1) not in (None, before[1]))
        again = set(pool.dask.run(os.getpid).values())
        assert len(again) == 2
        assert killed not in again
    assert not [pid for pid in workers | again if psutil.pid_exists(pid)]
    assert client.status == "closed"


def test_what_skyward_gives_beside_the_options_counts_as_one_of_them() -> None:
    compute = sky.Compute(provider=sky.Local(), worker=sky.Worker(concurrency=3), selection="first")
    assert compute.spec.options == sky.Options(worker=sky.Worker(concurrency=3), selection="first")
    assert compute.spec.ranks_per_node == 3
    with pytest.raises(sky.SpecError, match="worker is given twice"):
        sky.Compute(options=sky.Options(worker=sky.Worker(2)), worker=sky.Worker(3))
    with pytest.raises(sky.SpecError, match="worker must be"):
        sky.Compute(worker=3)  # type: ignore[arg-type]
    with pytest.raises(sky.SpecError, match="selection"):
        sky.Compute(selection="chepest")
    options: Any = {"console": False}
    with pytest.raises(sky.SpecError, match=r"options must be sky\.Options\(…\), not {'console': False}"):
        sky.Compute(options=options, worker=sky.Worker(2))


@pytest.mark.parametrize("provider", ["ssh", sky.Local])
def test_what_is_no_provider_is_refused(provider: Any) -> None:
    for make in (lambda: sky.Compute(provider=provider), lambda: sky.Compute(sky.Spec(provider), nodes=2)):
        with pytest.raises(sky.SpecError, match=r"provider must be a provider, such as sky\.Local\(\)"):
            make()
