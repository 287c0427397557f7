"""Showing and catching a failed cell runs nothing that a rank has sent."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import RankDied, RemoteError
from sky_jupyter.node.serialization.exceptions import describe
from sky_jupyter.pool.runs import remote_exceptions
from sky_jupyter.pool.runs.result import CellError, CellResult, Outcome
from tests.pool.pools import local_pool, run

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
else:
    from exceptiongroup import ExceptionGroup


class Custom(Exception):
    """Has attributes and an `__init__` that wants more than its arguments."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class Odd(ValueError):
    """Is more than its arguments."""

    def __init__(self, values: list[int]) -> None:
        super().__init__(values)


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def bomb(rank: int, path: Path, error: Exception, **told: Any) -> Outcome:
    """A rank that tells of an exception and sends the bomb in its place."""
    end = {"ename": type(error).__name__, "evalue": str(error), "traceback": ["as told"], **told}
    return Outcome(rank, rank, "error", {**end, "exception": base64.b64encode(pickle.dumps(Bomb(path))).decode()})


def sent(error: BaseException) -> Any:
    return json.loads(json.dumps(describe(error)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("v", 1),
        KeyError("k"),
        FileNotFoundError(2, "No such file or directory", "x"),
        ImportError("no module", name="n", path="p"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        ZeroDivisionError(),
        Custom("custom", code=3),
        RankDied("died"),
        StopIteration(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_plain_values_is_itself_without_a_pickle(error: Exception) -> None:
    again = remote_exceptions.exact(sent(error))
    if isinstance(error, UnicodeDecodeError):
        # Bytes are no JSON.
        assert again is None
        again = remote_exceptions.likeness(sent(error), "UnicodeDecodeError", str(error))
        assert isinstance(again, UnicodeDecodeError)
    else:
        assert again is not None
        assert type(again) is type(error)
        assert (again.args, vars(again)) == (error.args, vars(error))
        if isinstance(error, OSError):
            assert (again.errno, again.filename) == (2, "x")  # type: ignore[attr-defined]
        if isinstance(error, ImportError):
            assert (again.name, again.path) == ("n", "p")  # type: ignore[attr-defined]
    assert str(again) == str(error)


def test_what_is_raised_and_shown_and_caught_unpickles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "made"
    outcomes = [
        bomb(0, path, ValueError("plain"), raised=sent(ValueError("plain"))),
        bomb(1, path, Odd([1]), raised=sent(Odd([1]))),
        bomb(2, path, LookupError("silent")),
    ]
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    assert "as told" in "\n".join(error._render_traceback_())
    assert len(error.errors) == 3
    matched, rest = error.split(ValueError)
    assert matched is not None
    assert rest is not None
    assert [type(one).__name__ for one in matched.exceptions] == ["ValueError", "Odd"]
    assert isinstance(matched.exceptions[1], Odd)
    assert str(matched.exceptions[1]) == "[1]"
    assert type(rest.exceptions[0]) is RemoteError
    assert str(error.errors[0]) == "plain"
    assert not path.exists()
    # That, where it is touched, is unpickled: nothing else has what it holds.
    assert isinstance(error.errors[1], Odd)
    assert path.exists()


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"kinds": "x"},
        {"kinds": [["os", "system"]], "args": ["touch made"], "state": {}},
        {"kinds": [["builtins", "SystemExit"]], "args": [3], "state": {}},
        {"kinds": [["builtins", "ValueError"]], "args": {}, "state": []},
        {"kinds": [["builtins", "ValueError"]], "args": ["x"], "state": {"__class__": "y"}},
        {"kinds": [["builtins", "OSError"]], "args": [[1]], "state": {}},
        {"kinds": [["builtins", "ValueError.__init__.__globals__"]], "args": [], "state": {}},
        {"kinds": [["builtins", "UnicodeDecodeError"]], "args": ["x"], "state": {}},
        {"group": ["m", [{"kinds": []}, 3, None]]},
        {"group": [["m"], {}]},
    ],
)
def test_what_is_told_wrongly_is_a_plain_error(told: Any) -> None:
    assert remote_exceptions.exact(told) is None
    error = remote_exceptions.likeness(told, "Named", "text")
    assert isinstance(error, RemoteError)
    assert "text" in str(error)


def test_groups_are_caught_by_what_is_in_them() -> None:
    told = sent(ExceptionGroup("several", [KeyError("k"), ExceptionGroup("more", [Custom("c", code=1)])]))
    group = remote_exceptions.likeness(told, "ExceptionGroup", "several")
    assert isinstance(group, ExceptionGroup)
    matched, rest = group.split(Custom)
    assert matched is not None
    assert rest is not None
    assert [str(one) for one in rest.exceptions] == ["'k'"]


# Where it is unpickled it leaves a file with the process's number; the rank tries that itself.
HOSTILE = """
class Hostile(ValueError):
    def __reduce__(self):
        return exec, ("import os; open(%r + str(os.getpid()), 'w').close()",)
raise Hostile("pick me up")
"""


@pytest.mark.slow
def test_a_failed_cell_runs_nothing_in_the_notebook(tmp_path: Path) -> None:
    with local_pool() as pool:
        with pytest.raises(CellError) as caught:
            run(pool, HOSTILE % f"{tmp_path}/ran-in-")
        error = caught.value
        assert "pick me up" in "\n".join(error._render_traceback_())
        matched, rest = error.split(ValueError)
        assert rest is None
        assert matched is not None
        assert [str(one) for one in matched.exceptions] == ["Hostile: pick me up"] * 2
        assert os.listdir(tmp_path)
        assert not (tmp_path / f"ran-in-{os.getpid()}").exists()
        with pytest.raises(CellError) as caught:
            run(pool, "{}['missing']")
        assert type(caught.value.errors[1]) is KeyError
        assert caught.value.errors[1].args == ("missing",)
        assert caught.value.errors[1] is caught.value.exceptions[1]
