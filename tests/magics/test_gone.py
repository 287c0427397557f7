"""A cell that was meant for other machines does not run on this one because its pool is not there any more."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import PoolError
from sky_jupyter.magics.parsing import parse
from sky_jupyter.pool.lifecycle.state_machine import PoolState
from sky_jupyter.pool.open_pools import OpenPools
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.ended_pools import changes, line
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.magics.notebook import notebook


@pytest.mark.parametrize(
    "given",
    [
        "--provider ssh --hosts gpu1,gpu2",
        "--provider ssh --hosts me@gpu1:2222,gpu2,gpu3 --nodes 2 --ranks-per-node 4 --ttl 90s --keep --offline",
        "--provider ssh --hosts a --plugins jax,keras(backend=jax) --pip numpy,scipy --python 3.12 --name far "
        "--accelerator A100:8 --idle-timeout 2h --journal 64MB --no-cluster --user ada --jump door --accept-host-keys",
        "--provider aws --nodes 2 --accelerator A100:8 --spot --profile lab --regions us-east-1,us-west-2 "
        "--instance-type p4d.24xlarge --subnet subnet-0123abcd --ami ami-0123abcd --user ec2-user --jump me@door",
        "--provider aws --iam-instance-profile nodes --reservation cr-0123abcd --ssh-from any --allocation cheapest",
        "--provider aws --vcpus 16 --memory-gb 128.5 --disk-gb 1234567 --max-hourly-cost 1.5 --max-cost 1234.5678 "
        "--exit-timeout 30s",
        "--provider slurm --login me@cluster --partition gpu --account lab --time 2h --gpus-per-node a100:4 --nodes 2 "
        "--cpus-per-task 8 --exclusive --requeue --setup 'module load cuda' --extra='--mail-type=END --nice=5'",
        "--provider kubeflow --namespace lab --resources cpu=4,memory=16Gi --node-selector a=b,c=d --volumes /d=mine",
    ],
)
def test_the_line_that_makes_a_pool_anew_makes_the_same_pool(given: str) -> None:
    spec = parse(given, cell=True).spec()
    assert parse(line(spec).removeprefix("%sky "), cell=False).spec() == spec


def test_limits_that_differ_are_among_the_options_that_are_said_to_recreate_it() -> None:
    old = parse("--provider aws --vcpus 16 --max-hourly-cost 1.5", cell=True)
    new = parse("--provider aws --vcpus 16 --max-hourly-cost 9 --memory-gb 512 --exit-timeout 1m", cell=True)
    assert changes(old.spec(), new.spec()) == "--max-hourly-cost 9 --memory-gb 512 --exit-timeout 60s"


def test_the_line_shows_no_value_that_may_be_secret() -> None:
    given = "--provider ssh --hosts a --env TOKEN=abc123 --pip x@https://me:word@host/x.whl"
    text = line(parse(given, cell=True).spec())
    assert "abc123" not in text
    assert "word" not in text
    assert "TOKEN=" in text


@pytest.fixture
def live() -> OpenPools:
    return OpenPools()


def far(name: str = "default") -> Pool:
    return Pool(PoolSpec(provider=sky.SSH("gpu1,gpu2"), nodes=2, name=name, ttl=25))


def near(name: str) -> Pool:
    return Pool(PoolSpec(provider=sky.Local(), name=name))


def test_a_pool_whose_time_is_over_leaves_no_other_one_in_its_place(live: OpenPools) -> None:
    live.add(near("here"))
    live.add(pool := far())
    pool.lifecycle.states.to(PoolState.ENDED)
    pool.lifecycle.teardown.expired = True
    assert live.current is None
    with pytest.raises(PoolError, match="has ended: its ttl of 25 s is over") as caught:
        live.need(None)
    assert "`%sky up --provider ssh --hosts gpu1,gpu2 --ttl 25s` recreates it" in str(caught.value)
    assert "--name here" in str(caught.value)
    # It is said until a pool is chosen, and of its own name until there is one.
    assert live.gone() is not None
    live.use(live.need("here"))
    assert live.gone() is None
    with pytest.raises(PoolError, match="has ended"):
        live.need("default")
    live.add(near("default"))
    assert live.need("default").spec.provider.kind == "local"


def test_one_that_the_person_ended_leaves_the_other_one_where_there_is_one(live: OpenPools) -> None:
    live.add(near("here"))
    live.add(pool := far())
    pool.lifecycle.states.to(PoolState.ENDED)
    live.discard(pool)
    assert live.need(None).spec.name == "here"
    assert live.gone() is None
    live.add(pool := far("other"))
    live.discard(live.need("here"))
    pool.lifecycle.states.to(PoolState.ENDED)
    live.discard(pool)
    gone = live.gone()
    assert gone is not None
    assert gone.text == "pool 'other' on ssh (gpu1, gpu2) was ended"


def test_local_pools_end_as_ever(live: OpenPools) -> None:
    live.add(pool := near("here"))
    pool.lifecycle.states.to(PoolState.ENDED)
    live.discard(pool)
    assert live.gone() is None
    with pytest.raises(PoolError, match="there is no pool; live: none"):
        live.need(None)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)")
def test_after_hosts_that_could_not_be_reached_a_bare_cell_is_refused(tmp_path: Path) -> None:
    with notebook(tmp_path, SKY_REGISTRY=str(tmp_path / "registry.sqlite")) as book:
        book.run("%load_ext sky_jupyter")
        line = "%sky up --provider ssh --hosts 127.0.0.1:1"
        assert book.run(line).status == "error"
        for bare in ("%%sky\n1", "%%sky --nodes 2\n1"):
            cell = book.run(bare)
            assert cell.status == "error"
            assert "pool 'default' on ssh (127.0.0.1:1) was not started" in cell.error
            assert f"`{line}` recreates it" in cell.error
            assert "`%%sky --provider local` uses this machine" in cell.error
        assert f"`{line}` recreates it" in book.run("%sky").stream()
        assert "it is forgotten, and cells run on this machine again" in book.run("%sky down").stream()
        assert book.run("%sky down").stream() == "there is no pool, and nothing to end\n"
        assert book.run("%%sky\n40 + 2").status == "ok"
        book.run("%sky down")
        assert book.run(line).status == "error"
        assert book.run("%%sky --provider local\n40 + 2").status == "ok"
        # From here on this machine is what the person chose.
        assert book.run("%%sky\n40 + 2").status == "ok"
        assert book.run("%sky down").status == "ok"
        assert book.run("%%sky\n40 + 2").status == "ok"
