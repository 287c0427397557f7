"""`%sky restart`: new kernels with the plugins entered, on the same machines, and what was run is still known."""

from __future__ import annotations

import importlib.util
import time

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.runs.result import CellError
from tests.plugins.world import needs
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually, kernel_of
from tests.took import Took

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs the extra keras"),
]
needs("jax")

TRAIN = """
import jax, keras, numpy, os
x = numpy.ones((8, 4), "float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], verbose=0)
(os.getpid(), len(jax.devices()), [w.tolist() for w in model.get_weights()])
"""


def test_a_restart_brings_kernels_back_with_the_plugins_entered_and_keeps_the_history(took: Took) -> None:
    with local_pool(plugins=(sky.plugins.jax(), sky.plugins.keras())) as pool:
        printed = begin(pool, "for i in range(1000): print('line', i)\n'said'")
        assert pool.attend(printed).values == ["said", "said"]
        before = run(pool, TRAIN).values
        host = psutil.Process(pool.hosts[0].command.identity[0])
        # All but the kernels, which are the forkserver's children.
        machines = {process.pid for process in host.children()}
        for _ in range(3):
            run(pool, "lost = 1")
            old = [kernel_of(pool, rank) for rank in (0, 1)]
            began = time.monotonic()
            pool.restart()
            seconds = time.monotonic() - began
            assert pool.take_restarted() == {0, 1}
            assert eventually(lambda old=old: not any(process.is_running() for process in old))
            assert run(pool, "'lost' in globals()").values == [False, False]
            took.row(
                "`%sky restart`",
                see="the panel until the kernels are back",
                kept="machines, files, the history of runs and all that they printed; no name",
                on="jax and keras, 2 ranks",
                back=seconds,
            )
        after = run(pool, TRAIN).values
        assert [value[1] for value in after] == [2, 2]
        assert after[0][2] == after[1][2]
        assert {value[0] for value in before}.isdisjoint(value[0] for value in after)
        assert {process.pid for process in host.children()} == machines
        assert pool.runs()[printed.id]["over"]
        log = pool.log(printed.id)
        for rank in (0, 1):
            assert log.stdout(rank).splitlines() == [f"line {i}" for i in range(1000)]


@pytest.mark.parametrize("plugins", [(), (sky.plugins.jax(),)], ids=["alone", "jax"])
def test_a_restart_ends_a_cell_that_is_running_and_what_is_being_mended(plugins: tuple[Plugin, ...]) -> None:
    with local_pool(plugins=plugins) as pool:
        for begun in (0.5, 0.0):
            current = begin(pool, "import time; time.sleep(600)")
            assert eventually(lambda: pool.status()[0]["ranks"][0]["pid"])
            time.sleep(begun)
            pool.restart()
            assert eventually(current.over.is_set)
            with pytest.raises(CellError) as caught:
                pool.attend(current)
            assert "its kernel was replaced by `%sky restart`" in str(caught.value.errors[1])
            assert run(pool, "40 + 2").values == [42, 42]
        with pytest.raises(CellError):
            run(pool, "import os\nos._exit(3)", ranks=[1], grace=0.1)
        # Rank 1 is being replaced.
        pool.restart()
        assert run(pool, "40 + 2").values == [42, 42]
