"""A Keras model that is being trained when its cell is broken off keeps its weights, and trains on."""

from __future__ import annotations

import functools
import importlib.util
import random
import time
from collections.abc import Iterator

import pytest

import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.pool.runs.run import Run
from tests.plugins.world import needs
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually

pytestmark = [
    # Keras itself is imported in ranks only: here it would look for another backend.
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs the extra keras"),
]
needs("jax")

SETUP = """
import keras, numpy, time, sky_jupyter as sky
rank, n = sky.instance_info().rank, sky.instance_info().world_size
keras.utils.set_random_seed(0)
whole = numpy.random.default_rng(0).normal(size=(256, 64)).astype("float32")
x, y = sky.shard(whole, whole.sum(axis=1), drop_last=True)

class Noting(keras.callbacks.Callback):
    "Notes the weights of every step; on one rank it raises after the step `at`, or is slow."
    def __init__(self, at=None, failing=None, pause=0.0):
        super().__init__()
        self.at, self.failing, self.pause, self.steps = at, failing, pause, 0
    def on_train_batch_end(self, batch, logs=None):
        note(self.model)
        self.steps += 1
        print("step", self.steps)
        time.sleep(self.pause)
        if self.at is not None and len(seen) > self.at and rank == self.failing:
            raise ValueError(f"a callback of rank {rank}")

seen = {}
def weights(m): return [numpy.asarray(w).copy() for w in m.get_weights()]
def note(m):
    m.jax_state_sync()
    seen[int(m.optimizer.iterations.value)] = weights(m)
def make():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(320, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
def train(m, epochs, **more):
    return m.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **more)
model = make()
"""
STATE = """
import zlib
step = int(model.optimizer.iterations.value)
(step, zlib.crc32(b"".join(w.tobytes() for w in model.get_weights())),
 step not in seen or all((a == b).all() for a, b in zip(seen[step], model.get_weights())))
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(plugins=(sky.plugins.jax(), sky.plugins.keras())) as pool:
        yield pool


def state(pool: Pool) -> tuple[int, int]:
    """The step that the model has come to, and its weights' sum: the same on all ranks, and as they were then."""
    values = run(pool, STATE).values
    assert len({value[:2] for value in values}) == 1, values
    assert all(as_they_were for _, _, as_they_were in values)
    step, weights, _ = values[0]
    return step, weights


def said(current: Run, text: str) -> bool:
    return text in "".join(current.outcomes[0].stdout)


def expected(pool: Pool, steps: int) -> list[float]:
    """The loss over all data after so many steps without any disturbance."""
    code = "keras.utils.set_random_seed(0); quiet = make()\n"
    code += f"for step in range({steps}): quiet.train_on_batch(x[(step % 16) * 8:][:8], y[(step % 16) * 8:][:8])\n"
    return list(run(pool, code + "quiet.evaluate(x, y, verbose=0)").values)


@pytest.mark.slow
def test_an_exception_in_a_callback_of_one_rank_costs_no_weights_and_training_goes_on(pool: Pool) -> None:
    run(pool, SETUP)
    for attempt, failing in enumerate((1, 0, 1)):
        before = run(pool, "len(seen)").head
        with pytest.raises(CellError) as caught:
            run(pool, f"train(model, 5, callbacks=[Noting({before + 20}, {failing})])", grace=0.2)
        assert f"a callback of rank {failing}" in str(caught.value.errors[failing])
        step, _ = state(pool)
        assert step == 21 * (attempt + 1)
        assert pool.take_restarted() == set()
    trained = run(pool, "train(model, 1); model.evaluate(x, y, verbose=0)").values
    assert trained[0] == trained[1]
    assert state(pool)[0] == 63 + 16


def test_training_after_an_abort_gives_the_numbers_of_training_without_one(pool: Pool) -> None:
    run(pool, SETUP)
    with pytest.raises(CellError):
        # After a whole epoch: the next begins with the same batches.
        run(pool, "train(model, 3, callbacks=[Noting(15, 1)])", grace=0.2)
    assert state(pool)[0] == 16
    got = run(pool, "train(model, 1); model.evaluate(x, y, verbose=0)").values
    assert got == pytest.approx(expected(pool, 32), rel=1e-5)
    assert pool.take_restarted() == set()


@pytest.mark.slow
def test_an_interrupt_during_fit_leaves_all_ranks_at_one_step(pool: Pool) -> None:
    run(pool, SETUP)
    stuck = 0
    for _ in range(4):
        before, told = state(pool)[0], []
        fit = "train(model, 100_000, callbacks=[Noting(pause=0.002 * rank)])"
        current = begin(pool, fit, listener=lambda event, told=told: told.append(getattr(event, "text", "")))
        assert eventually(functools.partial(said, current, "step 5\n"), 60)
        time.sleep(random.random() / 10)
        pool.interrupt(current)
        if not current.over.wait(60):
            # gloo wakes nobody whose message was on its way as the connection broke: see docs/faults.md.
            assert any("could not be freed" in text and "interrupt again" in text for text in told), told
            pool.interrupt(current)
            stuck += 1
        with pytest.raises(CellError):
            pool.attend(current)
        if stuck and pool.take_restarted():
            run(pool, SETUP)
            continue
        step, _ = state(pool)
        assert step > before
    assert stuck <= 1
    assert pool.take_restarted() == set()
    trained = run(pool, "train(model, 1); model.evaluate(x, y, verbose=0)").values
    assert trained[0] == trained[1]


@pytest.mark.slow
def test_the_first_step_and_an_evaluation_that_are_broken_off_cost_no_weights(pool: Pool) -> None:
    run(pool, SETUP + "train(model, 1, callbacks=[Noting()]); before = weights(model)")
    for call in ("train(model, 1)", "model.evaluate(x, y, batch_size=8, verbose=0)"):
        # Rank 1 meets the others where the arguments are compared, and then not again.
        code = "from sky_jupyter.plugins.keras import model_hooks as keras_model\nchecked = keras_model.check_steps\n"
        code += "def leave(*a):\n    checked(*a)\n    raise ValueError('left')\n"
        code += "if rank == 1: keras_model.check_steps = leave\n"
        code += f"try:\n    {call}\nfinally:\n    keras_model.check_steps = checked"
        with pytest.raises(CellError) as caught:
            run(pool, code, grace=0.2)
        assert "left" in str(caught.value.errors[1])
        assert run(pool, "all((a == b).all() for a, b in zip(before, model.get_weights()))").values == [True, True]
        assert state(pool)[0] == 16
    assert pool.take_restarted() == set()


@pytest.mark.slow
def test_predict_and_a_model_that_was_saved_still_work_after_an_abort(pool: Pool, tmp_path: object) -> None:
    run(pool, SETUP + "train(model, 1); first = model.predict(x, verbose=0)")
    with pytest.raises(CellError):
        run(pool, "if rank == 0: raise ValueError('early')\ntrain(model, 1)", grace=0.2)
    code = f"path = '{tmp_path}/model.keras'\nif rank == 0: model.save(path)\n"
    code += "float(abs(model.predict(x, verbose=0) - first).max())"
    assert max(run(pool, code).values) < 1e-6
    assert run(
        pool,
        "other = keras.models.load_model(path); train(other, 1); train(model, 1); float(sum("
        "abs(a - b).sum() for a, b in zip(model.get_weights(), other.get_weights())))",
    ).values == [0.0, 0.0]


@pytest.mark.slow
def test_weights_reach_a_new_kernel_by_two_cells(pool: Pool) -> None:
    run(pool, SETUP + "train(model, 1)")
    with pytest.raises(CellError):
        run(pool, "import os\nif rank == 1: os._exit(3)\ntrain(model, 50)", grace=0.2)
    pool.settle()
    assert pool.take_restarted() == {1}
    kept = run(pool, "model.get_weights()", ranks=[0])
    cell = SETUP + "model.set_weights(kept.head)\n[w.tolist() for w in model.get_weights()]"
    values = run(pool, cell, {"kept": kept}).values
    assert values[0] == values[1] == [weight.tolist() for weight in kept.head]
    assert len(set(run(pool, "train(model, 1); model.evaluate(x, y, verbose=0)").values)) == 1
