"""Summaries of a rank's names: what libraries' values say of themselves, and that no code of the user's runs."""

from __future__ import annotations

import collections
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sky_jupyter.node.kernel import name_summaries
from sky_jupyter.node.kernel.name_summaries import summarize, summary


class Trap:
    """An object that tells when any code of its class runs."""

    touched: tuple[str, ...] = ()

    def __getattribute__(self, name: str) -> Any:
        Trap.touched += (name,)
        raise KeyboardInterrupt

    def __len__(self) -> int:
        Trap.touched += ("len",)
        return 1

    def __repr__(self) -> str:
        Trap.touched += ("repr",)
        return ""


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        Trap.touched += (name,)
        return super().__getattribute__(name)

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        Trap.touched += ("__name__",)
        return "other"


class Classy(metaclass=Meta):
    pass


class OwnArray(np.ndarray):
    @property
    def shape(self) -> Any:
        Trap.touched += ("shape",)
        return ()

    def __array_finalize__(self, obj: Any) -> None:
        pass


class OwnList(list[int]):
    def __len__(self) -> int:
        Trap.touched += ("len",)
        return 7


def test_no_code_of_a_users_class_runs() -> None:
    array = np.zeros((2, 3)).view(OwnArray)
    classy = Classy()
    Trap.touched = ()
    assert summary(Trap()) == {"type": "Trap"}
    assert summary(classy)["type"] == "Classy"
    assert summary(OwnList([1])) == {"type": "OwnList"}
    assert summary(array) == {"type": "OwnArray", "shape": [2, 3], "dtype": "float64", "bytes": 48}
    assert Trap.touched == ()


def test_a_class_that_only_has_a_librarys_name_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = type("DataFrame", (Trap,), {"__module__": "pandas"})
    Trap.touched = ()
    before = set(sys.modules)
    assert summary(object.__new__(fake)) == {"type": "DataFrame"}
    assert summary(object.__new__(type("Tensor", (), {"__module__": "torch"}))) == {"type": "Tensor"}
    # Nothing is imported either.
    assert set(sys.modules) == before
    assert Trap.touched == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, {"type": "int", "value": 3}),
        (10**400, {"type": "int"}),
        (float("nan"), {"type": "float", "value": "nan"}),
        (True, {"type": "bool", "value": "True"}),
        ("adam", {"type": "str", "items": 4, "value": "'adam'"}),
        ("x" * 10**6, {"type": "str", "items": 10**6}),
        (b"abc", {"type": "bytes", "items": 3}),
        ([1, 2], {"type": "list", "items": 2}),
        (collections.Counter("aab"), {"type": "Counter", "items": 2}),
        (np.float32(0.5), {"type": "float32", "dtype": "float32", "value": 0.5}),
        (np.array(2.5), {"type": "ndarray", "shape": [], "value": 2.5}),
        (pd.DataFrame({"a": [1, 2], "b": [1.5, 2.5]}), {"type": "DataFrame", "shape": [2, 2], "bytes": 32}),
        (pd.Series([1, 2]), {"type": "Series", "shape": [2], "dtype": "int64", "bytes": 16}),
        (summary, {"type": "function"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_is(value: Any, expected: dict[str, Any]) -> None:
    found = summary(value)
    if "bytes" not in expected:
        found.pop("bytes", None)
    assert found == {**found, **expected}
    assert found.keys() <= {"type", "value", "items", "shape", "dtype", "bytes"}
    assert ("value" in found) == ("value" in expected)


def test_names_of_the_shell_are_left_out_and_the_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    before = object()
    space = {"_1": 1, "_i": "", "In": [], "__name__": "x", "mine": 1, "_own": 2, "theirs": before, "replaced": 3}
    assert summarize(space, {"theirs": before, "replaced": before}) == {
        "names": {name: summary(space[name]) for name in ("mine", "_own", "replaced")},
        "more": 0,
    }
    monkeypatch.setattr(name_summaries, "_MOST_NAMES", 2)
    assert summarize(dict.fromkeys("abcde", 1), {})["more"] == 3


def test_names_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.1)
    assert summarize(dict.fromkeys("abcdef", 1), {}) == {"names": {"a": summary(1), "b": summary(1)}, "more": 4}


@pytest.mark.slow
def test_torch_models_are_counted_without_their_own_code() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
            self.again = self.one

        def parameters(self, recurse: bool = True) -> Any:
            raise AssertionError

        def __getattr__(self, name: str) -> Any:
            Trap.touched += (name,)
            return super().__getattr__(name)

    net = Net()
    Trap.touched = ()
    assert summary(net) == {"type": "Net", "weights": 26, "bytes": 104, "dtype": "float32", "device": "cpu"}
    assert Trap.touched == ()
    expected = {"type": "Tensor", "shape": [2, 3], "dtype": "bfloat16", "device": "meta", "bytes": 12}
    assert summary(torch.zeros(2, 3, dtype=torch.bfloat16, device="meta")) == expected
    assert summary(torch.tensor(0.5))["value"] == 0.5
    # A number on a device would be waited for: it is not read.
    assert "value" not in summary(torch.zeros((), device="meta"))


@pytest.mark.slow
def test_jax_arrays_say_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    array = jax.numpy.zeros((3, 4))
    wanted = {"type": "Array", "shape": [3, 4], "dtype": "float32", "device": "cpu:0", "bytes": 48}
    assert summary(array) == wanted
    array.delete()
    assert summary(array) == {"type": "Array", "shape": [3, 4], "dtype": "float32", "device": "deleted"}
    loss = jax.block_until_ready(jax.numpy.float32(0.25))
    assert summary(loss)["value"] == 0.25


@pytest.mark.slow
def test_keras_models_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.BatchNormalization()])
    assert summary(model) == {"type": "Sequential", "weights": 27, "bytes": 108, "dtype": "float32"}
    assert model.count_params() == 27
    assert summary(model.weights[0])["shape"] == [4, 3]
