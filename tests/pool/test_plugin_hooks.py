"""A plugin's hooks: each is called where and when the contract says."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, ProvisionError, SkyError, SpecError
from sky_jupyter.plugins.core.plugin import steps_of
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from sky_jupyter.util import process_identity
from tests.pool.pools import local_pool, run, wait_until


@contextlib.contextmanager
def note(path: Path, text: str) -> Iterator[None]:
    """Write when entered and when left."""
    with path.open("a") as file:
        file.write(f"enter {text}\n")
    yield
    with path.open("a") as file:
        file.write(f"leave {text}\n")


def test_ranks_enter_before_the_first_cell_and_the_head_leaves_last(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    around = lambda info: note(path, f"rank {info.rank}")  # noqa: E731 - it has to travel by value
    with local_pool(plugins=(sky.Plugin.create("noting").with_around_process(around),)) as pool:
        run(pool, "1")
        assert sorted(path.read_text().splitlines()) == ["enter rank 0", "enter rank 1"]
    assert path.read_text().splitlines()[2:] == ["leave rank 1", "leave rank 0"]


@pytest.mark.slow
def test_agents_and_the_notebook_enter_too(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    plugin = (
        sky.Plugin.create("noting")
        .with_around_app(lambda info: note(path, f"agent {info.node}"))
        .with_around_client(lambda pool: note(path, f"notebook {pool.spec.nodes}"))
    )
    with local_pool(plugins=(plugin,)) as pool:
        pool.restart()
        entered = path.read_text().splitlines()
    assert sorted(entered) == ["enter agent 0", "enter agent 1", "enter notebook 2"]
    assert sorted(path.read_text().splitlines()[3:]) == ["leave agent 0", "leave agent 1", "leave notebook 2"]


def test_an_error_of_the_system_in_an_agents_hook_is_told_as_it_is() -> None:
    @contextlib.contextmanager
    def refused(info: Any) -> Iterator[None]:
        raise OSError(98, "Address already in use")
        yield

    with (
        pytest.raises(SkyError, match="Address already in use"),
        local_pool(nodes=1, plugins=(sky.Plugin.create("mine").with_around_app(refused),)),
    ):
        pass


def test_an_interrupt_while_the_notebook_leaves_a_plugin_ends_the_pool_all_the_same() -> None:
    @contextlib.contextmanager
    def around_client(pool: Pool) -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    with local_pool(nodes=1, plugins=(sky.Plugin.create("leaving").with_around_client(around_client),)) as pool:
        host, id = pool.hosts[0], pool.id
        with pytest.raises(KeyboardInterrupt):
            pool.down()
        wait_until(lambda: not process_identity.lives(*host.command.identity))
        wait_until(lambda: pool.registry.pool(id) is None)
        assert pool.unended == []


def test_an_image_is_changed_and_modules_are_imported_before_the_ranks_are_forked() -> None:
    def transform(image: Image, spec: PoolSpec) -> Image:
        return image.adding(env={"NODES": str(spec.nodes)})

    plugin = sky.Plugin.create("mine").with_image_transform(transform).with_preload("colorsys")
    with local_pool(plugins=(plugin,)) as pool:
        assert run(pool, "import os, sys; os.environ['NODES'], 'colorsys' in sys.modules").values == [("2", True)] * 2


@pytest.mark.slow
def test_functions_are_wrapped() -> None:
    doubling = sky.Plugin.create("doubling").with_decorator(lambda function: lambda *args: 2 * function(*args))
    # The first one's is outermost.
    less = sky.Plugin.create("one-less").with_decorator(lambda function: lambda *args: function(*args) - 1)
    with sky.Compute(nodes=1, plugins=[doubling, less], name="wrapped") as pool:
        assert sky.function(lambda x: x + 1)(4) >> pool == 8


@pytest.mark.slow
def test_bootstrap_commands_run_once_a_machine_and_their_failure_is_told(tmp_path: Path) -> None:
    write = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"]
    with local_pool(plugins=(sky.Plugin.create("steps").with_bootstrap(lambda spec: [write]),)):
        assert (tmp_path / "ran").read_text() == "x"
    fail = [sys.executable, "-c", "import sys; print('so far'); sys.exit('and no further')"]
    pool = Pool(PoolSpec(provider=Local(), plugins=(sky.Plugin.create("steps").with_bootstrap(lambda spec: [fail]),)))
    with pytest.raises(BootstrapError, match=r"phase 'plugins'(?s:.*)so far(?s:.*)and no further") as caught:
        pool.start()
    assert caught.value.node == 0
    assert pool.state == "ended"
    absent = sky.Plugin.create("steps").with_bootstrap(lambda spec: [["/no/such/program"]])
    with pytest.raises(BootstrapError, match="/no/such/program could not be started: No such file"):
        Pool(PoolSpec(provider=Local(), plugins=(absent,))).start()
    with pytest.raises(SpecError, match="bootstrap must return a list of commands, not 'ls'"):
        steps_of(sky.Plugin.create("steps").with_bootstrap(lambda spec: "ls"), pool.spec)


def test_who_takes_a_pool_up_enters_too(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    plugin = sky.Plugin.create("noting").with_around_client(lambda pool: note(path, "notebook"))
    first = Pool(PoolSpec(provider=Local(), plugins=(plugin,), keep=True, name="kept"))
    first.start()
    row = first.registry.pool(first.id)
    assert row is not None
    second = Pool.attach(row, take_over=True)
    try:
        assert path.read_text().splitlines().count("enter notebook") == 2
        assert run(second, "1").values == [1]
    finally:
        second.down()
        first.down()
    assert path.read_text().splitlines().count("leave notebook") == 2


def test_a_preload_that_fails_is_told_when_the_plugin_fails() -> None:
    def enter(info: Any) -> Any:
        import no_such_module_of_ours

        return no_such_module_of_ours

    plugin = sky.Plugin.create("absent").with_preload("no_such_module_of_ours").with_around_process(enter)
    with pytest.raises(BootstrapError, match="no_such_module_of_ours could not be imported: ModuleNotFoundError"):
        Pool(PoolSpec(provider=Local(), plugins=(plugin,))).start()


def test_an_accelerator_that_this_machine_lacks_is_refused() -> None:
    pool = Pool(PoolSpec(provider=Local(), accelerator=sky.accelerators.Custom("Imaginary9000", count=3)))
    with pytest.raises(ProvisionError, match="custom:Imaginary9000:3 on each node; this machine has"):
        pool.start()
    assert pool.state == "ended"
