"""The plugin `keras` on real ranks: one model however many ranks train it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sky_jupyter.plugins import parse_plugins
from tests.plugins.world import RankError, World, needs

np = pytest.importorskip("numpy")
needs("keras")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Sums over a batch are taken in another order on two ranks: 3e-8 is what that amounted to here.
TOLERANCE = 1e-6
BATCH = 8


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    needs("jax")
    with World(parse_plugins("jax,keras"), 2) as world:
        yield world


# The other order is run on a pool, in tests/pool.
OTHER_ORDER = pytest.param("torch,keras(backend=torch)", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["keras(backend=torch),torch", OTHER_ORDER])
def torch_world(request: pytest.FixtureRequest) -> Iterator[World]:
    needs("torch")
    with World(parse_plugins(request.param), 2) as world:
        yield world


def make_model(optimizer: str = "adam", extra: tuple[str, ...] = ()) -> Any:
    import keras

    layers = [keras.Input((6,)), keras.layers.Dense(12, activation="relu")]
    layers += [getattr(keras.layers, name)() for name in extra]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def data(samples: int = 48) -> tuple[Any, Any]:
    random = np.random.default_rng(7)
    return random.normal(size=(samples, 6)).astype("float32"), random.normal(size=(samples, 3)).astype("float32")


def share(info: Any, samples: int = 48) -> tuple[Any, Any]:
    x, y = data(samples)
    return x[info.rank :: info.world_size], y[info.rank :: info.world_size]


def trained(info: Any) -> tuple[list[Any], list[Any], dict[str, list[float]]]:
    """Weights before and after `fit` on this rank's share, and what `fit` said."""
    model = make_model()
    x, y = share(info)
    # A deep copy: backends may hand out views.
    before = [weight.copy() for weight in model.get_weights()]
    history = model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False)
    return before, [weight.copy() for weight in model.get_weights()], history.history


def trained_alone(info: Any, weights: list[Any], ranks: int) -> list[Any]:
    """The same in one process, over batches that hold what the ranks' batches hold together."""
    model = make_model()
    model.set_weights(weights)
    x, y = data()
    shares = [np.arange(rank, len(x), ranks) for rank in range(ranks)]
    order = np.concatenate([part[i : i + BATCH] for i in range(0, len(shares[0]), BATCH) for part in shares])
    model.fit(x[order], y[order], batch_size=BATCH * ranks, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()


def largest_difference(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def test_fit_gives_the_same_weights_on_all_ranks_and_those_of_one_process(world: World) -> None:
    (before, after, history), (other_before, other_after, other_history) = world.run(trained)
    assert largest_difference(before, other_before) == 0, "initial weights agree"
    assert largest_difference(after, other_after) == 0
    assert history == other_history, "metrics are those of all ranks"
    assert largest_difference(before, after) > 0.005, "it learned"
    with World(parse_plugins("jax,keras"), 1) as single:
        (expected,) = single.run(trained_alone, before, 2)
    assert largest_difference(after, expected) < TOLERANCE


def test_dropout_and_random_numbers_agree_on_all_ranks(world: World) -> None:
    def draws(info: Any) -> list[Any]:
        import keras

        layer = keras.layers.Dropout(0.5)
        masks = [np.asarray(layer(np.ones((4, 16), "float32"), training=True)) for _ in range(2)]
        return [*masks, np.asarray(keras.random.normal((5,))), np.asarray(keras.random.SeedGenerator().state)]

    first, second = world.run(draws)
    assert largest_difference(first, second) == 0
    assert 0 < (first[0] == 0).sum() < first[0].size
    assert (first[0] != first[1]).any()


def test_models_with_dropout_and_batch_normalisation_stay_equal(world: World) -> None:
    def train(info: Any) -> list[Any]:
        import keras

        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
        )
        model.compile("adam", "mse")
        model.fit(*share(info), batch_size=BATCH)
        return model.get_weights()

    first, second = world.run(train)
    assert largest_difference(first, second) == 0


def test_evaluate_gives_the_metrics_of_all_ranks(world: World) -> None:
    def evaluate(info: Any) -> tuple[float, float]:
        model = make_model()
        x, y = data()
        loss, _ = model.evaluate(*share(info), batch_size=BATCH)
        return loss, float(((model.predict(x) - y) ** 2).mean())

    (loss, whole), other = world.run(evaluate)
    assert loss == pytest.approx(whole, rel=1e-5)
    assert other == (loss, whole)


def test_predict_needs_no_other_rank_and_the_model_trains_on(world: World) -> None:
    def prepare(info: Any) -> None:
        import builtins

        builtins.model = make_model()  # type: ignore[attr-defined]

    def predict(info: Any) -> float:
        import builtins

        model = builtins.model  # type: ignore[attr-defined]
        x = data()[0][: 10 + info.rank]
        weights = model.get_weights()
        by_hand = np.maximum(x @ weights[0] + weights[1], 0) @ weights[2] + weights[3]
        whole = np.abs(model.predict(x, batch_size=4) - by_hand).max()
        return max(float(whole), float(np.abs(model.predict_on_batch(x) - by_hand).max()))

    def train(info: Any) -> list[Any]:
        import builtins

        builtins.model.fit(*share(info), batch_size=BATCH)  # type: ignore[attr-defined]
        return builtins.model.get_weights()  # type: ignore[attr-defined]

    world.run(prepare)
    for ranks in ([0], [1], [0, 1]):
        assert max(world.run(predict, ranks=ranks)) < 1e-5
        assert largest_difference(*world.run(train)) == 0


def test_a_model_that_is_not_built_yet_may_predict_on_all_ranks_and_train(world: World) -> None:
    def train(info: Any) -> list[Any]:
        import keras

        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
        model.predict(data()[0][:5])
        model.compile("sgd", "mse")
        model.fit(*share(info), batch_size=BATCH)
        return model.get_weights()

    assert largest_difference(*world.run(train)) == 0


def test_one_rank_saves_and_all_load(world: World, tmp_path: Path) -> None:
    def prepare(info: Any) -> list[Any]:
        import builtins

        builtins.model = make_model()  # type: ignore[attr-defined]
        builtins.model.fit(*share(info), batch_size=BATCH)  # type: ignore[attr-defined]
        return builtins.model.get_weights()  # type: ignore[attr-defined]

    def save(info: Any) -> int:
        import builtins
        import pickle

        import keras

        model = builtins.model  # type: ignore[attr-defined]
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        keras.saving.save_model(model, tmp_path / "other.keras")
        return len(pickle.dumps(model))

    def load(info: Any) -> list[list[Any]]:
        import keras

        model = keras.saving.load_model(tmp_path / "model.keras")
        other = make_model()
        other.load_weights(tmp_path / "model.weights.h5")
        loaded = [model.get_weights(), other.get_weights()]
        model.fit(*share(info), batch_size=BATCH)
        return [*loaded, model.get_weights()]

    weights, _ = world.run(prepare)
    assert world.run(save, ranks=[0])[0] > 1000
    first, second = world.run(load)
    assert largest_difference(first[0], weights) == largest_difference(first[1], weights) == 0
    assert largest_difference(first[2], second[2]) == 0


def test_unequal_shares_are_refused_on_all_ranks_at_once(world: World) -> None:
    def fit(info: Any) -> None:
        x, y = data(30 + info.rank)
        make_model().fit(x, y)

    with pytest.raises(RankError) as failed:
        world.run(fit)
    for rank in range(2):
        assert "samples (rank 0: 30, rank 1: 31)" in failed.value.failed[rank]
        assert "drop_last=True" in failed.value.failed[rank]


def test_only_the_head_shows_bars_and_writes_files(world: World, tmp_path: Path) -> None:
    before = [world.printed(rank) for rank in range(2)]

    def fit(info: Any) -> list[str]:
        import keras

        checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / f"{info.rank}.keras", verbose=1)
        early = keras.callbacks.EarlyStopping("loss", patience=5)
        make_model().fit(*share(info), callbacks=[checkpoint, early])
        make_model().predict(data()[0])
        return sorted(path.name for path in tmp_path.iterdir())

    world.run(fit)
    assert [path.name for path in tmp_path.iterdir()] == ["0.keras"]
    shown = [world.printed(rank)[len(before[rank]) :] for rank in range(2)]
    assert "loss:" in shown[0]
    assert "loss:" not in shown[1]
    world.run(lambda info: make_model().fit(*share(info), verbose=2) and None)
    assert "loss:" in world.printed(1), "who asks for it by hand gets it"


def test_clear_session_keeps_the_ranks_together(world: World) -> None:
    def fit(info: Any) -> list[Any]:
        import keras

        keras.utils.clear_session()
        keras.backend.clear_session()
        return trained(info)[1]

    assert largest_difference(*world.run(fit)) == 0


def test_setting_up_again_keeps_values_and_trains_on(world: World) -> None:
    def keep(info: Any) -> list[Any]:
        import builtins

        builtins.weights = make_model().get_weights()  # type: ignore[attr-defined]
        return builtins.weights  # type: ignore[attr-defined]

    def go_on(info: Any) -> list[Any]:
        import builtins

        model = make_model()
        model.set_weights(builtins.weights)  # type: ignore[attr-defined]
        model.fit(*share(info), batch_size=BATCH, epochs=3, shuffle=False)
        return model.get_weights()

    weights, _ = world.run(keep)
    world.again()
    after, other = world.run(go_on)
    assert largest_difference(after, other) == 0
    assert 0.005 < largest_difference(after, weights) < 1


def test_random_numbers_agree_again_after_an_interrupt_between_the_ranks(world: World) -> None:
    def draw(info: Any) -> float:
        import random

        return random.random()

    def check(info: Any) -> None:
        parse_plugins("jax,keras")[1].check(info)  # type: ignore[misc]

    world.run(draw, ranks=[0])
    assert len(set(world.run(draw))) == 2
    world.run(check)
    assert len(set(world.run(draw))) == 1
    world.run(check)
    assert largest_difference(*(after for _, after, _ in world.run(trained))) == 0


@pytest.mark.parametrize("text", ["jax,keras", "keras(backend=torch),torch"])
def test_preloading_leaves_one_thread_and_no_backend_to_fork(text: str) -> None:
    backend = "torch" if "torch" in text else "jax"
    needs(backend)
    modules = [module for plugin in parse_plugins(text) for module in plugin.preload]
    code = (
        "import importlib, os, sys, threading\n"
        # BLAS libraries start threads when they are loaded, and handle a fork themselves.
        "import numpy, scipy.linalg; before = len(os.listdir('/proc/self/task'))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "xla = sys.modules.get('jax._src.xla_bridge'); torch = sys.modules.get('torch')\n"
        "print(len(os.listdir('/proc/self/task')) - before, threading.active_count(),"
        " bool(xla and xla.backends_are_initialized()), bool(torch and torch.cuda.is_initialized()))"
    )
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout.split() == ["0", "1", "False", "False"], done.stderr


def test_with_torch_plain_fit_trains_one_model_too(torch_world: World) -> None:
    (before, after, history), (_, other_after, other_history) = torch_world.run(trained)
    assert largest_difference(after, other_after) == 0
    assert history == other_history
    with World(parse_plugins("torch,keras(backend=torch)"), 1) as single:
        (expected,) = single.run(trained_alone, before, 2)
    assert largest_difference(before, after) > 0.005
    assert largest_difference(after, expected) < TOLERANCE


def test_with_torch_early_stopping_and_running_means_agree(torch_world: World) -> None:
    def fit(info: Any) -> tuple[int, list[Any]]:
        import keras

        class StopWhenHigh(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = logs["val_loss"] > 100

        model = make_model(extra=("BatchNormalization",))
        x, y = share(info)
        # By its own validation data rank 1 would stop at once, and rank 0 would go on alone.
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=12,
            validation_data=(x[:8], y[:8] * (1 + 100 * info.rank)),
            callbacks=[StopWhenHigh()],
        )
        return len(history.epoch), model.get_weights()

    (epochs, weights), (other_epochs, other_weights) = torch_world.run(fit)
    assert epochs == other_epochs == 1
    assert largest_difference(weights, other_weights) == 0


def test_with_torch_unequal_shares_are_refused_and_train_on_batch_agrees(torch_world: World) -> None:
    def uneven(info: Any) -> None:
        x, y = data(20 + info.rank)
        make_model().fit(x, y)

    def by_batches(info: Any) -> list[Any]:
        model = make_model("sgd")
        x, y = share(info)
        for begin in range(0, len(x), BATCH):
            model.train_on_batch(x[begin : begin + BATCH], y[begin : begin + BATCH])
        return model.get_weights()

    with pytest.raises(RankError) as failed:
        torch_world.run(uneven)
    assert sorted(failed.value.failed) == [0, 1]
    assert "drop_last=True" in failed.value.failed[0]
    assert largest_difference(*torch_world.run(by_batches)) == 0
