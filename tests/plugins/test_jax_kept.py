"""What JAX compiles is kept for later pools: a second start compiles nothing."""

from __future__ import annotations

import builtins
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sky_jupyter import plugins
from sky_jupyter.bootstrap import cache_cleanup
from sky_jupyter.plugins.jax import compile_cache
from sky_jupyter.plugins.jax.compile_cache import Kept
from tests.plugins.world import World, needs

needs("jax")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@contextlib.contextmanager
def _counting(info: Any) -> Iterator[None]:
    """Count what JAX tells of its cache, from before it starts."""
    import jax

    builtins.sky_counts = Counter()  # type: ignore[attr-defined]
    jax.monitoring.register_event_listener(lambda event, **_: builtins.sky_counts.update([event.rpartition("/")[2]]))
    yield


def counts(info: Any) -> tuple[int, int]:
    """How many programs were found, and how many compiled."""
    found: Counter[str] = builtins.sky_counts  # type: ignore[attr-defined]
    return found["cache_hits"], found["cache_misses"]


def work(info: Any) -> float:
    """Programs of this rank's device, and one of all ranks'."""
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    mine = jnp.tanh(jnp.ones((4, 4)) @ jnp.ones((4, 4))).sum()
    return float(multihost_utils.process_allgather(mine + info.rank).sum())


COUNTING = plugins.Plugin.create("counting").with_around_process(_counting)


def world(**env: str) -> World:
    return World([COUNTING, plugins.jax()], 2, env=env)


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("sky_jupyter/compiled/jax-*/*-cache"))


def test_a_second_start_compiles_nothing_on_any_rank(tmp_path: Path) -> None:
    results = []
    for start in range(2):
        with world(XDG_CACHE_HOME=str(tmp_path)) as ranks:
            at_start = ranks.run(counts)
            results += ranks.run(work)
            at_end = ranks.run(counts)
        for (hits, misses), (later_hits, later_misses) in zip(at_start, at_end, strict=True):
            if start:
                assert (hits, misses, later_misses) == (1, 0, 0)
                assert later_hits > 1
            else:
                assert later_misses > misses
    assert len(set(results)) == 1
    (folder,) = tmp_path.glob("sky_jupyter/compiled/jax-*")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    assert not list(folder.glob(".part-*"))


@pytest.mark.slow
def test_folders_that_a_person_sets_are_used_instead(tmp_path: Path) -> None:
    def in_a_cell(info: Any, folder: str) -> None:
        import jax

        jax.config.update("jax_compilation_cache_dir", folder)
        jax.jit(lambda x: x * 3)(1.0).block_until_ready()

    ours, own, cells = (tmp_path / name for name in ("ours", "own", "cells"))
    with world(XDG_CACHE_HOME=str(ours)) as ranks:
        before = files(ours)
        ranks.run(in_a_cell, str(cells))
        assert files(ours) == before
        assert list(cells.glob("*-cache"))
    # JAX's own thresholds are back then: what is quickly compiled is not kept.
    with world(XDG_CACHE_HOME=str(ours), JAX_COMPILATION_CACHE_DIR=str(own)) as ranks:
        seen = ranks.run(lambda info: dict(os.environ))
    assert {env["JAX_COMPILATION_CACHE_DIR"] for env in seen} == {str(own)}
    assert not any(name.upper() in env for env in seen for name in compile_cache.THRESHOLDS)
    assert files(ours) == before


def test_half_a_file_is_gone_and_made_anew(tmp_path: Path) -> None:
    def whole(value: bytes) -> None:
        if not value.endswith(b"."):
            raise ValueError("cut off")

    kept = Kept(tmp_path, whole)
    (tmp_path / "a-cache").write_bytes(b"hal")
    assert kept.get("a") is None
    kept.put("a", b"whole.")
    assert kept.get("a") == b"whole."


def test_what_was_used_least_lately_goes_first(tmp_path: Path) -> None:
    kept = Kept(tmp_path, most=100, files=10)
    for number, key in enumerate("abc"):
        kept.put(key, bytes(40))
        os.utime(tmp_path / f"{key}-cache", (number, number))
    assert kept.get("a") is not None
    stale = tmp_path / ".part-x"
    stale.touch()
    os.utime(stale, (time.time() - 7200, time.time() - 7200))
    kept.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-cache", "c-cache"]
    kept.put("more", bytes(101))
    assert kept.get("more") is None
    many = Kept(tmp_path, files=2)
    many.put("d", b"d")
    assert len(list(tmp_path.iterdir())) == 2


def test_it_may_be_cleaned_while_it_is_used(tmp_path: Path) -> None:
    cache = tmp_path / "sky_jupyter"
    kept = Kept(cache / "compiled" / "jax-x")
    kept.put("a", bytes(5000))
    assert cache_cleanup.clean_here({}, cache) >= 5000
    assert kept.get("a") is None
    kept.put("a", b"again")
    assert kept.get("a") == b"again"
    nowhere = Kept(tmp_path / "file" / "below")
    (tmp_path / "file").touch()
    nowhere.put("a", b"a")
    assert nowhere.get("a") is None


@pytest.mark.parametrize(
    ("before", "facts", "said"),
    [
        ("compiler._cache_write = lambda a, b, c, d, e, f: None", "", "in another way, and nothing is kept"),
        # Several machines with GPUs: see `install`.
        ("", "accelerators=1, peers=('10.0.0.1', '10.0.0.2'), total_nodes=2, world_size=2", ""),
        ("open(os.environ['XDG_CACHE_HOME'] + '/sky_jupyter', 'w')", "", ""),
    ],
    ids=["another JAX", "GPUs", "nowhere"],
)
@pytest.mark.slow
def test_where_it_cannot_be_kept_jax_works_as_without(tmp_path: Path, before: str, facts: str, said: str) -> None:
    script = f"""
import os
import jax, jax.numpy as jnp
from jax._src import compiler
from sky_jupyter.plugins.jax import compile_cache as jax_kept
from tests.plugins.world import infos
from dataclasses import replace
{before}
jax_kept.install(replace(infos([], 1)[0], {facts}))
assert jnp.ones(3).sum() == 3
"""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert bool(said) is ("kept" in done.stderr)
    assert not files(tmp_path)
