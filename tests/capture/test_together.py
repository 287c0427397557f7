"""Names that share an object in the notebook share it on the nodes, whenever each of them is sent."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sky_jupyter.capture.cell_names import analyse
from sky_jupyter.capture.collect import Capture, collect
from sky_jupyter.capture.ledger import Ledger
from sky_jupyter.node.serialization.pickling import bind
from sky_jupyter.node.serialization.received_objects import SentObjects
from tests.capture.test_collect import on_a_node
from tests.tiers import daily


class Thing:
    """An object of a class that is found by name."""


class Notebook:
    """A notebook and one node, each a namespace, that run cells as the magics would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace: dict[str, Any] = {"__name__": "__main__", "Thing": Thing, "np": np}
        self.node: dict[str, Any] = {}
        self.ledger, self.held = Ledger(), SentObjects()

    def plain(self, source: str) -> None:
        exec(source, self.namespace)
        self.ledger.notebook_ran(analyse(source), self.namespace)

    def sky(self, source: str) -> Capture:
        capture = collect(source, self.namespace, self.ledger)
        manifest = json.loads(json.dumps(capture.write(self.folder)))
        bind(manifest, self.node, held=self.held)
        before = {name: id(value) for name, value in self.node.items()}
        exec(source, self.node)
        self.held.sweep(self.node)
        capture.commit(self.ledger)
        wrote = [name for name, value in self.node.items() if before.get(name) != id(value)]
        self.ledger.nodes_wrote([name for name in wrote if name != "__builtins__"], self.namespace)
        return capture


def names(capture: Capture) -> set[str]:
    return {one.name for one in capture.bindings}


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path)


def parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield item
    elif isinstance(value, Thing):
        yield from parts(vars(value))
    elif isinstance(value, np.ndarray):
        yield value.tolist()


def shape(*values: Any) -> str:
    """What can be told of values by looking: two that look alike have the same content and share the same objects."""
    numbers: dict[int, int] = {}
    kept: list[Any] = []

    def told(value: Any) -> str:
        if isinstance(value, (int, str)):
            return repr(value)
        kept.append(value)
        if id(value) in numbers:
            return f"#{numbers[id(value)]}"
        numbers[id(value)] = len(numbers)
        return f"{type(value).__name__}({', '.join(map(told, parts(value)))})"

    return told(list(values))


NAMES = "abc"
name = st.sampled_from(NAMES)
number = st.integers(0, 9)
MAKE = st.one_of(
    st.builds("{} = [{}]".format, name, number),
    st.builds("{} = [{}, {}]".format, name, name, name),
    st.builds("{} = {{'k': {}, 'l': [{}]}}".format, name, name, number),
    st.builds("{} = Thing(); {}.x = {}; {}.y = [{}]".format, *[name] * 4, number),
    st.builds("{} = {}".format, name, name),
    st.builds("{} = np.arange(4) + {}".format, name, number),
    st.builds("{0} = {1}[1:] if isinstance({1}, np.ndarray) else [{1}]".format, name, name),
)
CHANGE = st.one_of(
    st.builds("{}.append({})".format, name, number),
    st.builds("{}[0] = {}".format, name, number),
    st.builds("{}[0].append({})".format, name, number),
    st.builds("{}['k'] = {}".format, name, number),
    st.builds("{}['k'].append({})".format, name, number),
    st.builds("{}.y.append({})".format, name, number),
    st.builds("{}.x[0] = {}".format, name, number),
    st.builds("{}['l'].append({})".format, name, number),
)
TIE = st.one_of(
    st.builds("{}.append({})".format, name, name),
    st.builds("{}[0] = {}".format, name, name),
    st.builds("{}.x = {}".format, name, name),
    st.builds("{}['k'] = {}".format, name, name),
)
look = st.sets(name, min_size=1).map(lambda found: "(" + ", ".join(sorted(found)) + ",)")


def tried(source: str) -> str:
    return f"try:\n    {source}\nexcept Exception:\n    pass"


def known(notebook: Notebook, source: str) -> bool:
    return all(one in notebook.namespace for one in analyse(source).reads if one in NAMES)


@settings(max_examples=100)
@given(
    cells=st.lists(
        st.one_of(st.tuples(st.just("plain"), MAKE), st.tuples(st.just("sky"), st.one_of(CHANGE, TIE))), max_size=12
    )
)
def test_what_the_notebook_makes_and_the_nodes_change_is_as_in_one_process(
    cells: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    notebook, one = Notebook(tmp_path_factory.mktemp("blobs")), {"Thing": Thing, "np": np}
    for kind, source in cells:
        if not known(notebook, source):
            continue
        (notebook.sky if kind == "sky" else notebook.plain)(tried(source))
        exec(tried(source), one)
    made = [each for each in NAMES if each in notebook.namespace]
    if made:
        notebook.sky(", ".join(made))
    assert shape(*(notebook.node[each] for each in made)) == shape(*(one[each] for each in made))


@settings(max_examples=100)
@given(
    cells=st.lists(
        st.one_of(st.tuples(st.just("plain"), st.one_of(MAKE, CHANGE, TIE)), st.tuples(st.just("sky"), look)),
        max_size=14,
    )
)
def test_what_the_notebook_makes_and_changes_is_the_same_on_the_nodes(
    cells: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    notebook = Notebook(tmp_path_factory.mktemp("blobs"))
    for kind, source in cells:
        if not known(notebook, source):
            continue
        if kind == "plain":
            notebook.plain(tried(source))
            continue
        notebook.sky(source)
        read = sorted(one for one in analyse(source).reads if one in NAMES)
        assert shape(*(notebook.node[one] for one in read)) == shape(*(notebook.namespace[one] for one in read))


TORCH = """
import torch
model = torch.nn.Linear(1, 1); opt = torch.optim.SGD(model.parameters(), 0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 1)
w = model.weight.data
seen = []
model.register_forward_hook(lambda *_: seen.append(1))
before = model.weight.item()
"""
STEP = "model(torch.ones(1, 1)).sum().backward(); opt.step(); sched.step()"
STATE = "model.weight.item() != before, w.item() == model.weight.item(), sched.optimizer is opt, len(seen)"
KINDS = {
    "a model, its optimizer, scheduler, weights and hook": (TORCH, [STEP, f"print({STATE})"], "True True True 1"),
    "of which some are sent later": (
        TORCH,
        ["model(torch.ones(1, 1)).sum().backward()", "opt.step()", "sched.step()", f"print({STATE})"],
        "True True True 1",
    ),
    "an estimator in a pipeline": (
        "from sklearn.linear_model import LinearRegression\nfrom sklearn.pipeline import make_pipeline\n"
        "clf = LinearRegression(); pipe = make_pipeline(clf)",
        ["clf", "pipe.fit([[0], [1]], [0, 2])", "print(round(clf.coef_[0], 3))"],
        "2.0",
    ),
    "a figure and its axes": (
        "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()",
        ["ax.plot([1, 2])", "print(len(fig.axes[0].lines))"],
        "1",
    ),
    "views": (
        "import numpy as np\nx = np.zeros((300, 400)); y = x[1:, ::2]; t = x.T; o = np.array([None] * 3); p = o[::-1]",
        ["o; x[1, 2] = 5; p[0] = 1", "y[1] = 1; print(y[0, 1], t[2, 1], x[2, 0], o[2])"],
        "5.0 5.0 1.0 1",
    ),
    "a bound method": (
        "class A:\n    n = 0\n    def up(self):\n        self.n += 1\na = A(); up = a.up",
        ["up()", "print(a.n, up.__self__ is a)"],
        "1 True",
    ),
    "closures over one variable": (
        "def make():\n    k = 0\n    def inc():\n        nonlocal k\n        k += 1\n    def get():\n        return k\n"
        "    return inc, get\ninc, get = make()",
        ["inc()", "print(get())"],
        "1",
    ),
    "globals of functions": (
        "d = {}; e = [d]\ndef put():\n    d['k'] = 1\ndef got():\n    return e",
        ["put()", "print(got())"],
        "[{'k': 1}]",
    ),
}


@pytest.mark.parametrize("kind", daily(["views", "a bound method"], KINDS))
def test_what_belongs_together_does_so_on_a_node(kind: str, tmp_path: Path) -> None:
    source, cells, said = KINDS[kind]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    ledger, sent = Ledger(), []
    for cell in cells:
        capture = collect(cell, namespace, ledger)
        capture.write(tmp_path)
        sent.append((capture, cell))
        capture.commit(ledger)
    assert on_a_node(tmp_path, *sent) == said


def test_what_the_nodes_have_is_not_sent_again_for_what_shares_it(notebook: Notebook) -> None:
    notebook.plain("x = [0]; y = [x]; z = (1, x)")
    assert names(notebook.sky("x.append(1)")) == {"x"}
    assert names(notebook.sky("y")) == {"y"}
    assert names(notebook.sky("z[1].append(2)")) == {"z"}
    assert notebook.node["x"] == [0, 1, 2]
    assert notebook.node["y"][0] is notebook.node["x"]
    assert names(notebook.sky("x, y, z")) == set()


def test_a_change_in_the_notebook_is_sent_with_all_that_shows_it(notebook: Notebook) -> None:
    notebook.plain("x = [0]; y = [x]; z = [y]")
    notebook.sky("x, y, z")
    notebook.namespace["x"].append(1)
    assert names(notebook.sky("x")) == {"x", "y", "z"}
    assert notebook.node["z"][0][0] is notebook.node["x"]


def test_slices_that_have_no_memory_in_common_go_alone(notebook: Notebook) -> None:
    notebook.plain("x = np.zeros(100_000); a, b = x[:50_000], x[50_000:]; c = x[40_000:60_000]")
    assert notebook.sky("a, b").groups == ()
    assert len(collect("a, b, c", notebook.namespace, Ledger()).groups) == 1


def test_what_cannot_change_and_what_a_class_has_bind_no_names_together(notebook: Notebook) -> None:
    notebook.plain("import datetime, dataclasses; s = 'a' * 99; t = (s, 1); d = datetime.date.today()")
    notebook.plain("@dataclasses.dataclass\nclass P:\n    x: int\n    all = []\np, q = P(1), P(2)")
    notebook.plain("a, b = [s, t, d, int], [s, t, d, int]")
    assert collect("a, b, p, q, P", notebook.namespace, Ledger()).groups == ()


def test_names_that_part_are_named_before_the_cell_runs(notebook: Notebook) -> None:
    notebook.plain("x = [0]; y = [x]")
    notebook.sky("x")
    notebook.sky("x = [5]")
    (note,) = notebook.sky("y").notes
    assert note.startswith("y and x share an object in the notebook, and do not on the nodes")
    assert notebook.node["x"] == [5]


def test_tables_keep_their_copies_on_write(notebook: Notebook) -> None:
    notebook.plain(
        "import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); other = df.copy(deep=False); both = [df, other]"
    )
    notebook.sky("df; both[1].loc[0, 'b'] = 9; other['c'] = 1")
    assert notebook.node["both"][0] is notebook.node["df"]
    assert list(notebook.node["df"]) == ["a"]


@pytest.mark.parametrize("later", ["a", "b", "(a, b)"])
@pytest.mark.parametrize(
    "make",
    [
        "a = np.arange(4.0); b = a[1:]",
        "a = np.arange(4.0); b = Thing(); b.x = a[1:]",
        "a = np.arange(6.0)[1:5]; b = a.base[3:]",  # Nobody has the whole.
        "a = np.arange(4.0).astype(object); b = a[1:]",
    ],
)
def test_a_change_of_an_array_outside_a_view_of_it_reaches_the_nodes(notebook: Notebook, make: str, later: str) -> None:
    notebook.plain(make)
    notebook.sky("a, b")
    for number in (13.0, 14.0):
        notebook.plain(f"a[0] = {number}")
        notebook.sky(later)
        capture = notebook.sky("a, b")
        assert not capture.notes
        assert shape(notebook.node["a"], notebook.node["b"]) == shape(notebook.namespace["a"], notebook.namespace["b"])
    notebook.sky("a[:] = 7.0")
    view = notebook.node["b"]
    assert np.asarray(view.x if isinstance(view, Thing) else view).flat[0] == 7.0


def test_an_array_that_has_changed_outside_what_the_nodes_have_of_it_parts_from_that(notebook: Notebook) -> None:
    notebook.plain("a = np.arange(4.0); b = a[1:]")
    notebook.sky("a, b; b = b")
    notebook.sky("b = b[:]")
    notebook.plain("a[0] = 13.0")
    capture = notebook.sky("a, b")
    assert notebook.node["a"].tolist() == [13.0, 1.0, 2.0, 3.0]
    assert any("a and b share an object" in note for note in capture.notes)


KERAS = """
import keras
L = keras.layers; x = np.ones((8, 4), "float32")
inputs = keras.Input((4,)); code = L.Dense(2)(inputs)
encoder = keras.Model(inputs, code)
auto = keras.Model(inputs, L.Dense(4)(code))
inner = keras.Sequential([keras.Input((4,)), L.Dense(4)])
whole = keras.Sequential([keras.Input((4,)), inner, L.Dense(4)])
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.Sequential([L.Dense(4)])
    def call(self, x):
        return self.head(x)
net = Net(); net(x); head = net.head
one, two = keras.Input((4,)), keras.Input((4,)); dense = L.Dense(4)
left, right = keras.Model(one, L.Activation("tanh")(dense(one))), keras.Model(two, L.Dense(4)(dense(two)))
for each in auto, whole, net, right:
    each.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
auto.fit(x, x * 0 + 3, verbose=0)
optimizer, kernel = auto.optimizer, dense.kernel
"""
MODELS = [("encoder", "auto"), ("inner", "whole"), ("head", "net"), ("left", "right"), ("kernel", "right")]


@pytest.fixture(scope="module")
def keras_names() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
        pytest.importorskip("keras")
    namespace = {"__name__": "__main__", "np": np}
    exec(KERAS, namespace)
    return namespace


@pytest.mark.parametrize(
    ("pair", "later"),
    # What is in no configuration cannot be given to a model later: see below.
    [(pair, later) for pair in MODELS for later in (False, True) if not (later and pair[0] in ("head", "kernel"))],
)
def test_keras_models_with_common_layers_train_them_together(
    pair: tuple[str, str], later: bool, notebook: Notebook, keras_names: dict[str, Any]
) -> None:
    notebook.namespace |= keras_names
    part, model = pair
    value = part if part == "kernel" else f"{part}(x)"
    told = f"before = np.array({value})"
    notes = notebook.sky(told if later else f"{model}; {told}").notes
    notes += notebook.sky(f"{model}.fit(x, x * 0 + 3, verbose=0)").notes
    notebook.sky(f"after = np.array({value})")
    assert not np.allclose(notebook.node["before"], notebook.node["after"])
    here = keras_names[part] if part == "kernel" else keras_names[part](keras_names["x"])
    assert np.allclose(notebook.node["before"], np.array(here), atol=1e-6)
    assert notes == ()


def test_a_keras_models_optimizer_is_the_one_that_it_trains_with(
    notebook: Notebook, keras_names: dict[str, Any]
) -> None:
    notebook.namespace |= keras_names
    notebook.sky("steps = int(np.array(auto.optimizer.iterations)), optimizer is auto.optimizer")
    assert notebook.node["steps"] == (1, True)
    notebook.plain("pair = [auto, encoder]")
    notebook.sky("tied = pair[0] is auto, pair[1] is encoder, encoder.layers[1] is auto.layers[1]")
    assert notebook.node["tied"] == (True, True, True)


@pytest.mark.parametrize(("part", "model"), [("head", "net"), ("kernel", "right")])
def test_a_keras_layer_that_cannot_be_kept_common_is_named_before_the_cell_runs(
    part: str, model: str, notebook: Notebook, keras_names: dict[str, Any]
) -> None:
    notebook.namespace |= keras_names
    notebook.sky(part)
    (note,) = notebook.sky(model).notes
    assert note.startswith(f"{model} and {part} share Keras layers or weights in the notebook, and do not on the nodes")


def test_a_name_of_pythons_own_is_itself_again_once_the_notebook_has_deleted_its_own(notebook: Notebook) -> None:
    notebook.plain("list = [1]")
    notebook.sky("seen = list")
    notebook.plain("del list")
    assert names(notebook.sky("seen = list('ab')")) == {"list"}
    assert notebook.node["seen"] == ["a", "b"]
    assert names(notebook.sky("seen = list('c')")) == set()
    notebook.plain("list = [2]")
    notebook.sky("seen = list")
    assert notebook.node["seen"] == [2]


def test_an_array_and_a_tensor_that_share_memory_are_told_apart_before_a_cell_runs(notebook: Notebook) -> None:
    notebook.namespace["torch"] = torch = pytest.importorskip("torch")
    notebook.plain("a = np.zeros(8); t = torch.from_numpy(a[2:]); model = torch.nn.Linear(2, 2); b = np.ones(8)")
    (note,) = notebook.sky("a, t, model, b").notes
    assert note.startswith("a and t share memory in the notebook, and do not on the nodes")
    assert notebook.sky("a, t").notes == ()
    notebook.namespace["both"] = {"weights": torch.arange(5.0), "array": None}
    notebook.namespace["both"]["array"] = notebook.namespace["both"]["weights"].numpy()
    (note,) = notebook.sky("both").notes
    assert note.startswith("an array and a tensor in both share memory")


def test_what_shard_cuts_is_told_apart_from_what_goes_whole(notebook: Notebook) -> None:
    notebook.plain("a = np.arange(8.0); view = a[1:]; other = np.arange(8.0)")
    capture = collect("a, view, other", notebook.namespace, notebook.ledger, shard=("a",), ranks=2)
    assert capture.notes == ("a and view are one in the notebook, and not on the nodes: --shard cuts a alone",)


VIEWS = ["{}[1:]", "{}.reshape(-1)", "{}", "{}.copy()", "{}.T", "{}[::2]", "np.arange(12.)"]


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_views_taken_at_random_share_memory_there_as_here(seed: int, tmp_path: Path) -> None:
    for each in range(seed, seed + 10):
        chance, notebook = random.Random(each), Notebook(tmp_path)
        told: set[str] = set()
        lines = ["a = np.arange(12.)"]
        notebook.plain(lines[0])
        for _ in range(14):
            have = [name for name in "abcd" if name in notebook.namespace]
            if chance.random() < 0.3:
                line = "; ".join(chance.sample(have, chance.randint(1, len(have))))
                told.update(notebook.sky(line).notes)
            else:
                line = f"{chance.choice('abcd')} = {chance.choice(VIEWS).format(chance.choice(have))}"
                notebook.plain(line)
            lines.append(line)
        have = [name for name in "abcd" if name in notebook.namespace]
        told.update(notebook.sky("; ".join(have)).notes)
        here, there = notebook.namespace, notebook.node
        for one, other in itertools.combinations(have, 2):
            assert np.array_equal(here[one], there[one]), lines
            if not any(one in note and other in note for note in told):
                assert np.shares_memory(here[one], here[other]) == np.shares_memory(there[one], there[other]), lines


def test_an_equal_array_in_the_place_of_another_is_not_taken_for_it(notebook: Notebook) -> None:
    notebook.plain("a = np.arange(12.)")
    notebook.sky("a")
    notebook.plain("b = a[1:]; a = np.arange(12.)")
    notebook.sky("a; b")
    assert not np.shares_memory(notebook.node["a"], notebook.node["b"])


def test_views_of_an_array_without_a_name_are_views_of_one_array(notebook: Notebook) -> None:
    notebook.plain("a = np.arange(12.)")
    notebook.sky("a")
    notebook.plain("d = a[2:]; a = d[1:]")
    notebook.sky("a; d")
    assert np.shares_memory(notebook.node["a"], notebook.node["d"])
