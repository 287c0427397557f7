"""Frameworks on real pools: entered before the first cell, and in order again after what goes wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.capture.collect import collect_value
from sky_jupyter.errors import RankDied, SpecError
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.plugins.world import needs
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually, kernel_of

needs("jax")
needs("torch")

DEVICES = "import jax; (jax.device_count(), jax.local_device_count(), jax.process_index())"
GATHER = "from jax.experimental import multihost_utils; import numpy, sky_jupyter as sky\n"
GATHER += "rank = sky.instance_info().rank\n"
ALL_RANKS = "multihost_utils.process_allgather(numpy.array([rank])).ravel().tolist()"


@pytest.fixture(scope="module")
def jax_pool() -> Iterator[Pool]:
    with local_pool(plugins=(sky.plugins.jax(), sky.plugins.keras())) as pool:
        run(pool, GATHER + "kept = 'here'")
        yield pool


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[Pool]:
    with local_pool(plugins=(sky.plugins.torch(),)) as pool:
        yield pool


def fresh(pool: Pool) -> None:
    """What a test broke is mended; the names that other tests use are there."""
    pool.settle()
    pool.take_restarted()
    run(pool, GATHER + "kept = 'here'")


def test_every_rank_sees_the_devices_of_all(jax_pool: Pool) -> None:
    assert run(jax_pool, DEVICES).values == [(2, 1, 0), (2, 1, 1)]
    assert run(jax_pool, ALL_RANKS).values == [[0, 1], [0, 1]]


def test_what_the_frameworks_print_from_native_code_stays_out_of_cells(jax_pool: Pool) -> None:
    result = run(jax_pool, ALL_RANKS)
    assert [result.stdout(rank) + result.stderr(rank) for rank in (0, 1)] == ["", ""]


def test_a_sharded_array_comes_back_as_each_ranks_part_and_a_replicated_one_whole(jax_pool: Pool) -> None:
    code = """
import jax, jax.numpy as jnp, numpy
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), numpy.full((3, 2), float(rank)))
whole = jax.jit(lambda x: x + 0, out_shardings=NamedSharding(mesh, P()))(split)
"""
    run(jax_pool, code)
    parts = run(jax_pool, "split")
    assert [part.tolist() for part in parts] == [[[float(rank)] * 2] * 3 for rank in (0, 1)]
    assert [part.shape for part in run(jax_pool, "whole")] == [(6, 2), (6, 2)]
    run(jax_pool, "state = {'w': split, 'b': whole, 'step': 3}")
    assert jax_pool.pull("state", [1])["w"].tolist() == [[1.0] * 2] * 3
    state = jax_pool.pull("state", how="concat")
    assert state["w"].tolist() == state["b"].tolist() == [[0.0] * 2] * 3 + [[1.0] * 2] * 3
    assert state["step"] == 3
    with pytest.raises(SpecError, match="rank 0 has only a part of 'split'; pull it from all ranks"):
        jax_pool.pull("split", [0], how="concat")


def test_a_rank_that_raises_frees_those_that_wait_in_a_collective(jax_pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(jax_pool, f"if rank == 1: raise ValueError('first')\n{ALL_RANKS}", grace=0.5)
    assert isinstance(caught.value.errors[1], ValueError)
    assert "rank 1 had failed" in str(caught.value.errors[0])
    fresh(jax_pool)
    assert run(jax_pool, ALL_RANKS).values == [[0, 1], [0, 1]]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_frees_those_that_wait_and_the_next_cell_works(jax_pool: Pool, victim: int) -> None:
    code = f"import time\nif rank == {victim}: time.sleep(600)\n{ALL_RANKS}"
    current = begin(jax_pool, code, grace=0.5)
    time.sleep(0.5)
    kernel_of(jax_pool, victim).send_signal(signal.SIGKILL)
    assert eventually(lambda: current.outcomes[victim].status == "died", 60)
    with pytest.raises(CellError) as caught:
        jax_pool.attend(current)
    assert isinstance(caught.value.errors[victim], RankDied)
    assert "SIGKILL" in str(caught.value.errors[victim])
    assert str(caught.value).startswith(f"the cell failed on rank {victim} of 2: it was killed by SIGKILL (9)")
    fresh(jax_pool)
    assert run(jax_pool, ALL_RANKS).values == [[0, 1], [0, 1]]


def test_an_interrupt_between_collectives_keeps_every_namespace(jax_pool: Pool) -> None:
    run(jax_pool, "precious = rank + 100")
    current = begin(jax_pool, f"import time\nwhile True:\n    {ALL_RANKS}\n    time.sleep(0.3)")
    time.sleep(1.0)
    jax_pool.interrupt(current)
    with pytest.raises(CellError):
        jax_pool.attend(current)
    jax_pool.settle()
    # Whether the ranks were in step when it came is chance; either way the next cell works, and what
    # was lost is known.
    if jax_pool.take_restarted():
        fresh(jax_pool)
    else:
        assert run(jax_pool, "precious").values == [100, 101]
    assert run(jax_pool, ALL_RANKS).values == [[0, 1], [0, 1]]


def test_an_interrupt_outside_of_collectives_restarts_nothing(jax_pool: Pool) -> None:
    run(jax_pool, "precious = rank + 100")
    current = begin(jax_pool, "import time\ntime.sleep(60)")
    threading.Timer(0.5, lambda: jax_pool.interrupt(current)).start()
    with pytest.raises(CellError):
        jax_pool.attend(current)
    jax_pool.settle()
    assert jax_pool.take_restarted() == set()
    assert run(jax_pool, "precious").values == [100, 101]


def test_keras_trains_the_same_weights_on_all_ranks_of_a_pool(jax_pool: Pool) -> None:
    code = """
import keras, numpy
keras.utils.set_random_seed(1)
x = numpy.random.default_rng(0).normal(size=(64, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
x, y = sky.shard(x, y, drop_last=True)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=8, epochs=2)
[weight.tolist() for weight in model.get_weights()]
"""
    result = run(jax_pool, code)
    assert result[0] == result[1]
    assert "Epoch 2/2" in result.stdout(0)
    assert result.stdout(1) == ""


MODEL = """
import keras, numpy
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(numpy.ones((8, 4)), numpy.ones((8, 2)), batch_size=4, verbose=0)
float(model.get_weights()[0].sum())
"""


def test_a_cell_on_one_rank_makes_and_trains_a_model(jax_pool: Pool) -> None:
    first, again = (run(jax_pool, MODEL, ranks=[1]).values[0] for _ in range(2))
    assert first != again
    one, other = run(jax_pool, MODEL).values
    assert one == other


@pytest.mark.slow
def test_calls_to_one_rank_make_and_train_models() -> None:
    @sky.function
    def build(width: int) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width)])

    @sky.function
    def trained(width: int) -> float:
        import keras
        import numpy

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width)])
        model.compile("sgd", "mse")
        history = model.fit(numpy.ones((8, 4)), numpy.zeros((8, width)), epochs=2, verbose=0).history["loss"]
        return float(history[1] - history[0])

    plugins = [sky.plugins.jax(), sky.plugins.keras()]
    with sky.Compute(nodes=2, provider=sky.Local(), plugins=plugins) as pool:
        # The model itself is kept by its rank: the notebook need not have Keras.
        assert "Sequential" in repr(build(3) >> pool)
        assert all(change < 0 for change in pool.map(trained, [2, 3, 4]))


@pytest.mark.long
def test_keras_alone_has_tensorflow_on_one_rank() -> None:
    @sky.function
    def trained() -> tuple[str, bool]:
        import keras
        import numpy

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        losses = model.fit(numpy.ones((8, 4)), numpy.zeros((8, 1)), epochs=2, verbose=0).history["loss"]
        return keras.backend.backend(), losses[1] < losses[0]

    plugins, image = [sky.plugins.keras(backend="tensorflow")], sky.Image(pip=["tensorflow-cpu"])
    with sky.Compute(provider=sky.Local(), plugins=plugins, image=image) as pool:
        assert trained() >> pool == ("tensorflow", True)


def test_a_collective_in_a_cell_that_leaves_ranks_out_is_told(jax_pool: Pool) -> None:
    notices: list[str] = []
    before, jax_pool.supervisor.silence = jax_pool.supervisor.silence, 1.0
    try:

        def listen(event: Event) -> None:
            if isinstance(event, NoticeEvent):
                notices.append(event.text)

        current = begin(jax_pool, GATHER + ALL_RANKS, ranks=[1], listener=listen)
        assert eventually(lambda: bool(notices), 60)
        assert notices[0].startswith("rank 1 waits in process_allgather")
        assert "rank 0 does not take part: what it waits for may be rank 0, which this run leaves out" in notices[0]
        jax_pool.interrupt(current)
        with pytest.raises(CellError, match="stopped on rank 1"):
            jax_pool.attend(current)
    finally:
        jax_pool.supervisor.silence = before
    fresh(jax_pool)


def test_a_collective_in_a_call_of_one_rank_is_told_and_an_interrupt_frees_it(jax_pool: Pool) -> None:
    notices: list[str] = []
    before, jax_pool.supervisor.silence = jax_pool.supervisor.silence, 1.0

    def gather() -> None:
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(jnp.ones(1))

    def listen(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            notices.append(event.text)

    run(jax_pool, "kept = 5", {})
    pids = run(jax_pool, "import os; os.getpid()", {}).values
    try:
        blob, capture = collect_value((gather, (), {}), {}, jax_pool.ledger)
        call = jax_pool.submission.begin_one(blob, capture, rank=1, listener=listen)
        assert eventually(lambda: bool(notices), 60)
        assert notices[0].startswith("rank 1 waits in process_allgather")
        assert "what it waits for may be rank 0, which this run leaves out" in notices[0]
        jax_pool.interrupt(call)
        assert not jax_pool.wait(call)
        assert call.outcome.status == "interrupted"
        jax_pool.finish(call)
    finally:
        jax_pool.supervisor.silence = before
    jax_pool.settle()
    assert run(jax_pool, "kept, os.getpid()", {}).values == [(5, pid) for pid in pids]
    fresh(jax_pool)


def test_a_restart_enters_the_plugins_again(jax_pool: Pool) -> None:
    jax_pool.restart()
    assert jax_pool.take_restarted() == {0, 1}
    assert run(jax_pool, DEVICES).values == [(2, 1, 0), (2, 1, 1)]
    fresh(jax_pool)


@pytest.mark.slow
def test_more_and_fewer_nodes_are_one_world_again(jax_pool: Pool) -> None:
    jax_pool.resize(3)
    assert run(jax_pool, GATHER + ALL_RANKS).values == [[0, 1, 2]] * 3
    jax_pool.resize(remove=[1])
    assert run(jax_pool, DEVICES).values == [(2, 1, 0), (2, 1, 1)]
    fresh(jax_pool)


def test_torch_ranks_reduce_together_and_know_their_environment(torch_pool: Pool) -> None:
    code = """
import os, torch, torch.distributed as dist, sky_jupyter as sky
rank = sky.instance_info().rank
total = torch.tensor([rank + 1.0]); dist.all_reduce(total)
(total.item(), [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE")])
"""
    assert run(torch_pool, code).values == [(3.0, ["0", "2", "0", "0", "1"]), (3.0, ["1", "2", "0", "1", "1"])]


def test_a_killed_torch_rank_frees_those_that_wait_and_the_next_cell_works(torch_pool: Pool) -> None:
    setup = "import torch, torch.distributed as dist, os, signal; rank = dist.get_rank()\n"
    code = setup + "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(torch.ones(1))"
    with pytest.raises(CellError) as caught:
        run(torch_pool, code, grace=0.5)
    assert isinstance(caught.value.errors[1], RankDied)
    assert str(caught.value).startswith("the cell failed on rank 1 of 2: it was killed by SIGKILL (9)")
    assert run(torch_pool, setup + "t = torch.ones(1); dist.all_reduce(t); t.item()").values == [2.0, 2.0]
    torch_pool.take_restarted()


def test_a_torch_rank_that_raises_frees_those_that_wait(torch_pool: Pool) -> None:
    setup = "import torch, torch.distributed as dist; rank = dist.get_rank()\n"
    with pytest.raises(CellError) as caught:
        run(torch_pool, setup + "if rank == 0: raise KeyError('k')\ndist.barrier()", grace=0.5)
    assert isinstance(caught.value.errors[0], KeyError)
    assert run(torch_pool, setup + "t = torch.ones(1); dist.all_reduce(t); t.item()").values == [2.0, 2.0]


@pytest.mark.slow
def test_keras_on_torch_trains_together_with_torch_entered_first() -> None:
    plugins = sky.plugins.parse_plugins("torch,keras(backend=torch)")
    code = """
import keras, numpy, sky_jupyter as sky
keras.utils.set_random_seed(1)
x = numpy.random.default_rng(0).normal(size=(32, 4)).astype("float32")
x, y = sky.shard(x, x.sum(axis=1), drop_last=True)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=4, epochs=1)
(keras.backend.backend(), [weight.tolist() for weight in model.get_weights()])
"""
    with local_pool(plugins=plugins) as pool:
        result = run(pool, code)
        assert result[0][0] == "torch"
        assert result[0] == result[1]


def test_two_ranks_a_node_are_one_world(monkeypatch: pytest.MonkeyPatch) -> None:
    with local_pool(nodes=1, ranks_per_node=2, plugins=(sky.plugins.jax(),)) as pool:
        assert run(pool, DEVICES).values == [(2, 1, 0), (2, 1, 1)]
        code = "import sky_jupyter as sky; i = sky.instance_info(); (i.node, i.local_rank, i.ranks_per_node)"
        assert run(pool, code).values == [(0, 0, 2), (0, 1, 2)]


@pytest.mark.slow
def test_a_variable_of_the_image_is_there_before_a_framework_is_imported() -> None:
    image = sky.Image(env={"JAX_ENABLE_X64": "1"})
    with local_pool(nodes=1, plugins=(sky.plugins.jax(),), image=image) as pool:
        assert run(pool, "import jax.numpy as jnp; str(jnp.ones(1).dtype)").head == "float64"
    assert "JAX_ENABLE_X64" not in os.environ
