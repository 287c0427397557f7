"""``%sky copy`` in a real kernel: the new kernel of a rank that has died gets what the others have."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.conftest import MARK, marked_processes
from tests.magics.notebook import Notebook, notebook

MADE = """%%sky
import os
import collections as kept
from math import floor
held = [1, 2]
both = {"held": held}
factor = 3
def times(x): return floor(x) * factor
class Kind:
    number = 7
one = Kind()
endless = (i for i in range(3))
seed = 99"""
LOOKED_AT = (
    "%%sky\n(held, both['held'] is held, times(2.5), type(one) is Kind, one.number, seed, kept.__name__, "
    "'endless' in globals(), '_sky_copied' in globals())"
)
KILL = "%%sky --on 2\nos.kill(os.getpid(), 9)"


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as opened:
        assert opened.run("%load_ext sky_jupyter\nseed = 1").status == "ok"
        assert opened.run("%sky up --nodes 3").status == "ok"
        yield opened
    end = time.monotonic() + 60
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end, "the notebook's pools outlive it"
        time.sleep(0.05)


def test_a_new_kernel_gets_all_names_that_the_others_have_and_imports_by_itself(book):
    assert book.run(MADE).status == "ok"
    died = book.run(KILL)
    assert "`%sky copy --to 2` copies them from another rank" in died.run
    told = book.run("%sky copy --to 2").stream()
    assert "Kind, both, factor, floor, held, one, seed, times: copied from rank 0 to rank 2" in told
    assert "endless: not copied" in told
    assert "generator" in told
    seen = book.run(LOOKED_AT)
    assert seen.status == "ok", seen.error
    assert "[2] Out: ([1, 2], True, 6, True, 7, 99, 'collections', False, False)" in seen.body
    assert "[0-1] Out: ([1, 2], True, 6, True, 7, 99, 'collections', True, False)" in seen.body
    # From now on the rank has them as the others do.
    assert "endless" in book.run("%sky copy").stream()
    names = book.run("%sky names").stream()
    assert "_sky_copied" not in names
    (held,) = [line for line in names.splitlines() if line.startswith("held ")]
    assert "ranks 0-1" not in held


def test_names_are_copied_from_one_rank_to_others_as_asked(book):
    assert book.run("%%sky --on 1\nown = 5").status == "ok"
    assert book.run("%sky copy own --from 1 --to 0,2").stream() == "own: copied from rank 1 to ranks 0, 2\n"
    assert book.run("%%sky\nown").body == ["[0-2] Out: 5"]
    # What a rank has of the name is replaced.
    assert book.run("%%sky --on 0\nown = 6").status == "ok"
    assert book.run("%sky copy own").stream() == "own: copied from rank 0 to ranks 1-2\n"
    assert book.run("%%sky\nown").body == ["[0-2] Out: 6"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("held_ --from 0", "rank 0 has no 'held_'"),
        ("--from 0 --to 0,1", "rank 0 is copied from, and cannot be one that is copied to"),
        ("--to 7", "ranks 0 to 2, not 7"),
        ("--from 0-1", "--from takes a rank, or head, not '0-1'"),
        ("a-b", "copy takes names with a comma between, not 'a-b'"),
    ],
)
def test_what_cannot_be_copied_is_refused(book, line, said):
    assert said in book.run(f"%sky copy {line}").stream("stderr")


def test_what_cannot_be_built_on_the_target_is_said_with_the_ranks(book):
    make = "%%sky --on 0\nclass Odd:\n    def __reduce__(self): return int, ('no number',)\nodd = Odd()"
    assert book.run(make).status == "ok"
    cell = book.run("%sky copy odd --from 0 --to 1")
    assert cell.error_name == "PoolError"
    assert "what rank 0 has could not be built on rank 1" in cell.error
    assert "no number" in cell.error


@pytest.mark.slow
def test_a_model_comes_by_its_weights_and_stays_with_its_optimizer(book):
    pytest.importorskip("torch")
    code = """%%sky
import os, torch
torch.manual_seed(os.getpid())
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
    assert book.run(code).status == "ok"
    book.run(KILL)
    assert "model, optimizer" in book.run("%sky copy model,optimizer --to 2").stream()
    look = "%%sky --on 0,2\nmodel.weight.tolist(), optimizer.param_groups[0]['params'][0] is model.weight"
    seen = book.run(look)
    # Equal on both, and so shown once.
    assert all(line.startswith("[0,2] ") for line in seen.body)
    assert seen.body[-1].endswith("True)")


@pytest.mark.slow
def test_a_keras_model_is_copied_with_the_backend_of_its_rank(book):
    made = "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras"
    model = "model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])"
    assert book.run(f"%%sky --on 0\n{made}\n{model}").status == "ok"
    assert book.run("%sky copy model --from 0 --to 1").stream() == "model: copied from rank 0 to rank 1\n"
    assert book.run("%%sky --on 0,1\nmodel.get_weights()[0].tolist()").status == "ok"
    assert book.value("_sky[0] == _sky[1]")
