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
from tests import tiers
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


@pytest.mark.slow
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


def check_evaluate(any_world: World) -> None:
    def evaluate(info: Any) -> tuple[float, float]:
        model = make_model()
        x, y = data()
        loss, _ = model.evaluate(*share(info), batch_size=BATCH)
        return loss, float(((model.predict(x) - y) ** 2).mean())

    (loss, whole), other = any_world.run(evaluate)
    assert loss == pytest.approx(whole, rel=1e-5)
    assert other == (loss, whole)


def test_evaluate_gives_the_metrics_of_all_ranks(world: World) -> None:
    check_evaluate(world)


@pytest.mark.slow
def test_with_torch_evaluate_gives_the_metrics_of_all_ranks(torch_world: World) -> None:
    check_evaluate(torch_world)


@pytest.mark.slow
def test_with_torch_one_rank_works_by_itself_and_fit_on_all_goes_on_from_the_heads_values(
    torch_world: World, tmp_path: Path
) -> None:
    check_one_rank(torch_world, tmp_path)
    check_return(torch_world)


@pytest.mark.slow
def test_with_torch_each_rank_drops_others_out_and_all_draw_the_same_numbers_afterwards(torch_world: World) -> None:
    def masks(info: Any) -> tuple[list[Any], float, list[Any]]:
        import keras

        seen: list[Any] = []

        class Seen(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                if "cpu" in str(x.device):
                    seen.append(x.detach().numpy().copy())
                return x

        dropout = [keras.layers.Dropout(0.5), keras.layers.Dropout(0.5, seed=3)]
        for one in dropout:
            model = keras.Sequential([keras.Input((64,)), one, Seen(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.ones((8, 64), "float32"), np.ones((8, 1), "float32"), batch_size=8)
        return seen[-2:], float(np.random.random()), make_model().get_weights()

    (first, number, weights), (second, other_number, other_weights) = torch_world.run(masks)
    for one, other in zip(first, second, strict=True):
        assert 0 < (one == 0).sum() < one.size
        assert ((one == 0) != (other == 0)).any()
    assert number == other_number
    assert largest_difference(weights, other_weights) == 0


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


def made_loaded_and_fitted(info: Any, path: str) -> tuple[list[Any], list[Any], list[Any], float, float]:
    """What one rank does by itself: weights before and after `fit`, as loaded, and what it computes."""
    import keras

    model = make_model()
    before = [weight.copy() for weight in model.get_weights()]
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=2)
    model.train_on_batch(x, y)
    model.save(path)
    loaded = keras.saving.load_model(path)
    loss = model.evaluate(x, y)[0]
    assert model.test_on_batch(x, y)[0] == pytest.approx(loss)
    assert history.history["loss"][-1] > loss
    return before, model.get_weights(), loaded.get_weights(), loss, float(((loaded.predict(x) - y) ** 2).mean())


def check_one_rank(any_world: World, tmp_path: Path) -> None:
    def numbers(info: Any) -> tuple[float, float]:
        import random

        return random.random(), float(np.random.random())

    for rank in (1, 0):
        printed = len(any_world.printed(rank))
        path = str(tmp_path / f"{rank}.keras")
        ((before, after, loaded, loss, error),) = any_world.run(made_loaded_and_fitted, path, ranks=[rank])
        assert largest_difference(before, after) > 0.001, "it learned"
        assert largest_difference(after, loaded) == 0
        assert loss == pytest.approx(error, rel=1e-5)
        assert "Epoch 2/2" in any_world.printed(rank)[printed:], "nobody else shows its bar"
    one, other = any_world.run(numbers)
    assert one == other
    (first, after, _), (other_first, other_after, _) = any_world.run(trained)
    assert largest_difference(first, other_first) == largest_difference(after, other_after) == 0


@pytest.mark.slow
def test_one_rank_makes_loads_and_fits_a_model_by_itself(world: World, tmp_path: Path) -> None:
    check_one_rank(world, tmp_path)


def check_return(any_world: World) -> None:
    def prepare(info: Any) -> None:
        import builtins

        builtins.model = make_model()  # type: ignore[attr-defined]
        builtins.model.fit(*share(info), batch_size=BATCH)  # type: ignore[attr-defined]

    def fit(info: Any) -> tuple[list[Any], list[str]]:
        import builtins
        import warnings

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            builtins.model.fit(*share(info), batch_size=BATCH)  # type: ignore[attr-defined]
        return builtins.model.get_weights(), [
            text for text in map(str, (one.message for one in said)) if text.startswith("fit:")
        ]  # type: ignore[attr-defined]

    any_world.run(prepare)
    (_, none), (_, none_either) = any_world.run(fit)
    assert not none + none_either, "nothing is said of values that agree"
    any_world.run(fit, ranks=[1])
    (weights, said), (other, said_too) = any_world.run(fit)
    assert largest_difference(weights, other) == 0
    assert "the model's values on rank 1 were not those of rank 0" in said[0]
    assert said == said_too


def test_a_common_model_that_one_rank_has_trained_goes_on_from_the_heads_values(world: World) -> None:
    check_return(world)


def test_one_rank_of_a_run_of_all_makes_a_model_and_other_ranks_do_not_wait(world: World) -> None:
    def make(info: Any) -> list[Any]:
        return [] if info.is_head else make_model().get_weights()

    assert [len(weights) for weights in world.run(make)] == [0, 4]


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


def check_files(any_world: World, folder: Path) -> None:
    def save(info: Any) -> list[Any]:
        import keras

        for number in range(6):
            model = make_model()
            for name in (f"{number}.keras", f"{number}.h5", "one.keras"):
                model.save(folder / name)
                # Of the older format Keras does not find its own losses again.
                loaded = keras.saving.load_model(folder / name, compile=name.endswith(".keras"))
            model.save_weights(folder / "one.weights.h5")
            model.load_weights(folder / "one.weights.h5")
        checkpoint = keras.callbacks.ModelCheckpoint(folder / "best.keras", verbose=0)
        loaded.fit(*share(info), batch_size=BATCH, callbacks=[checkpoint])
        return [weight.copy() for weight in keras.saving.load_model(folder / "best.keras").get_weights()]

    def back_up(info: Any, stop: bool) -> tuple[list[int], int]:
        import keras

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if stop and epoch == 2:
                    raise ZeroDivisionError

        model = make_model()
        backup = keras.callbacks.BackupAndRestore(folder / "backup")
        try:
            history = model.fit(*share(info), batch_size=BATCH, epochs=4, callbacks=[backup, Stop()])
        except ZeroDivisionError:
            return [], int(model.optimizer.iterations)
        return history.epoch, int(model.optimizer.iterations)

    assert largest_difference(*any_world.run(save)) == 0
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert any_world.run(back_up, True) == [([], 6)] * 2
    assert any_world.run(back_up, False) == [([2, 3], 12)] * 2
    assert not (folder / "backup").exists()


@pytest.mark.slow
def test_ranks_of_one_machine_write_and_read_the_same_files(world: World, tmp_path: Path) -> None:
    check_files(world, tmp_path)


@pytest.mark.slow
def test_with_torch_ranks_of_one_machine_write_and_read_the_same_files(torch_world: World, tmp_path: Path) -> None:
    check_files(torch_world, tmp_path)


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

    def draw_on_one(info: Any) -> None:
        import random

        if info.is_head:
            random.random()

    def check(info: Any) -> None:
        parse_plugins("jax,keras")[1].check(info)  # type: ignore[misc]

    world.run(draw_on_one)
    assert len(set(world.run(draw))) == 2
    world.run(check)
    assert len(set(world.run(draw))) == 1
    world.run(check)
    assert largest_difference(*(after for _, after, _ in world.run(trained))) == 0


@pytest.mark.parametrize("text", tiers.daily(["jax,keras"], ["jax,keras", "keras(backend=torch),torch"]))
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env=env)
    assert done.stdout.split() == ["0", "1", "False", "False"], done.stderr


def test_with_torch_plain_fit_trains_one_model_too(torch_world: World) -> None:
    (before, after, history), (other_before, other_after, other_history) = torch_world.run(trained)
    assert largest_difference(before, other_before) == 0, "initial weights agree"
    assert largest_difference(after, other_after) == 0
    assert history == other_history
    with World(parse_plugins("torch,keras(backend=torch)"), 1) as single:
        (expected,) = single.run(trained_alone, before, 2)
    assert largest_difference(before, after) > 0.005
    assert largest_difference(after, expected) < TOLERANCE


@pytest.mark.slow
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


@pytest.mark.slow
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
