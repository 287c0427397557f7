"""What is kept for later pools is removed, and never below a pool that uses it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sky_jupyter.bootstrap import cache_cleanup
from sky_jupyter.errors import PoolError


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with something in it."""
    folder = tmp_path / "sky_jupyter"
    (folder / "environments" / "abc" / "bin").mkdir(parents=True)
    (folder / "environments" / "abc" / "large").write_bytes(b"x" * (1 << 20))
    os.link(folder / "environments" / "abc" / "large", folder / "linked")
    return folder


def test_all_of_it_goes_and_what_it_took_is_told(cache: Path) -> None:
    freed = cache_cleanup.clean_here({}, cache)
    assert 1 << 20 <= freed < 3 << 19
    assert list(cache.parent.iterdir()) == []
    assert cache_cleanup.clean_here({}, cache) == 0


def test_what_an_earlier_removal_has_left_goes_too(cache: Path) -> None:
    cache.rename(cache.with_name("sky_jupyter.gone-0123"))
    assert cache_cleanup.clean_here({}, cache) >= 1 << 20
    assert list(cache.parent.iterdir()) == []


def test_a_pool_that_runs_out_of_it_is_named(cache: Path) -> None:
    # A process as a pool's host is: its interpreter is in the cache, and its folder has the pool's id.
    python = cache / "environments" / "abc" / "bin" / "python"
    python.symlink_to(sys.executable)
    module = cache / "sky_jupyter" / "node"
    module.mkdir(parents=True)
    for path in (module.parent, module):
        (path / "__init__.py").touch()
    (module / "host.py").write_text("import time; print(1, flush=True); time.sleep(100)")
    command = [str(python), "-m", "sky_jupyter.node.host", "/tmp/sky-0123abcd-ef"]
    environment = {**os.environ, "PYTHONPATH": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=cache) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            with pytest.raises(PoolError) as caught:
                cache_cleanup.clean_here({"0123abcd": "night"}, cache)
            assert "pool 'night' is there; end with `%sky down --name night`" in str(caught.value)
            with pytest.raises(PoolError, match=r"of another machine or notebook is there \(0123abcd\)"):
                cache_cleanup.clean_here({}, cache)
            assert python.exists()
        finally:
            process.kill()
    assert cache_cleanup.clean_here({}, cache) > 0


def test_an_environment_that_is_being_built_is_left_alone(cache: Path) -> None:
    with open(cache / "environments" / "abc.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PoolError, match="builds an environment there"):
            cache_cleanup.clean_here({}, cache)
    assert cache_cleanup.clean_here({}, cache) > 0
