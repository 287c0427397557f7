"""Results and errors by themselves: how outcomes become values, groups and tracebacks."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from typing import Any

import pytest

from sky_jupyter.errors import RankDied, RemoteError, SkyError
from sky_jupyter.node.serialization.exceptions import describe
from sky_jupyter.node.serialization.unpicklable_placeholders import RemoteRepr
from sky_jupyter.pool.runs.broadcast_error import BroadcastError
from sky_jupyter.pool.runs.result import CellError, CellResult, Outcome, RankInterrupted


def ok(rank: int, value: object) -> Outcome:
    return Outcome(rank, rank, "ok", {"value": base64.b64encode(pickle.dumps(value)).decode(), "type": "x"})


def failed(rank: int, error: BaseException, traceback: str = "") -> Outcome:
    end = {"ename": type(error).__name__, "evalue": str(error), "traceback": [traceback or repr(error)]}
    end["raised"] = json.loads(json.dumps(describe(error)))
    return Outcome(rank, rank, "error", {**end, "exception": base64.b64encode(pickle.dumps(error)).decode()})


def test_a_result_is_a_sequence_in_rank_order() -> None:
    result = CellResult([ok(1, "b"), ok(0, "a")], 1.5)
    assert list(result) == ["a", "b"]
    assert len(result) == 2
    assert result[0] == result.head == "a"
    assert result[-1] == "b"
    assert result[0:2] == ["a", "b"]
    assert "2 ranks" in repr(result)


def test_a_result_of_some_ranks_says_which_it_has() -> None:
    result = CellResult([ok(3, "c")], 0.1)
    assert result.ranks == (3,)
    assert result.value(3) == "c"
    with pytest.raises(KeyError, match="rank 0 took no part"):
        result.value(0)


def test_values_leave_out_ranks_that_failed() -> None:
    result = CellResult([ok(0, "a"), failed(1, ValueError("v"))], 0.1)
    assert result.values == ["a"]
    assert isinstance(result.errors[1], ValueError)
    with pytest.raises(ValueError, match="v"):
        result[1]


def test_a_value_that_cannot_be_rebuilt_here_says_why() -> None:
    outcome = Outcome(0, 0, "ok", {"value": base64.b64encode(b"cno_such_module\nthing\n.").decode(), "type": "t.T"})
    value = CellResult([outcome], 0.1).head
    assert isinstance(value, RemoteRepr)
    assert repr(value) == "<t.T object>"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in value.reason


def test_a_stand_in_says_what_is_missing_when_it_is_used_like_the_value() -> None:
    value = RemoteRepr("<generator object f>", "builtins.generator", "cannot be pickled", 3)
    with pytest.raises(AttributeError, match=r"'send': only the repr of this builtins.generator is here. It stayed on"):
        value.send(None)
    assert not hasattr(value, "_ipython_display_")
    again = pickle.loads(pickle.dumps(value))
    assert (repr(again), again.reason, again.rank) == ("<generator object f>", "cannot be pickled", 3)


def test_an_exception_that_does_not_travel_becomes_a_remote_error() -> None:
    end = {"ename": "Weird", "evalue": "odd", "traceback": ["\x1b[31mthere\x1b[39m"], "exception": "bm90IGEgcGlja2xl"}
    error = CellResult([Outcome(0, 0, "error", end)], 0.1).errors[0]
    assert isinstance(error, RemoteError)
    assert "Weird: odd" in str(error)
    assert "\x1b" not in error.__notes__[0]


def test_a_system_exit_of_a_rank_does_not_end_the_notebook() -> None:
    error = CellResult([failed(0, SystemExit(3))], 0.1).errors[0]
    assert isinstance(error, RemoteError)


def test_what_is_likely_the_cause_is_shown_first_and_the_stopped_last() -> None:
    outcomes = [
        Outcome(0, 0, "interrupted", {"why": ": rank 2 had failed"}),
        failed(1, ConnectionError("peer gone")),
        Outcome(2, 2, "died", {"text": "killed by SIGKILL (9)"}),
    ]
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    shown = "\n".join(error._render_traceback_())
    assert shown.index("SIGKILL") < shown.index("peer gone") < shown.index("interrupted: rank 2 had failed")
    assert isinstance(error, SkyError)
    assert [type(one) for one in error.exceptions] == [RankInterrupted, ConnectionError, RankDied]


def test_ranks_with_the_same_traceback_are_grouped() -> None:
    outcomes = [failed(rank, ValueError("same"), "the same text") for rank in (0, 1, 2, 5)]
    outcomes.append(failed(3, ValueError("other"), "another text"))
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    shown = "\n".join(error._render_traceback_())
    assert shown.count("the same text") == 1
    assert "ranks 0-2, 5" in shown
    assert "rank 3" in shown


def test_one_death_is_one_failure_and_what_it_broke_is_folded_under_it() -> None:
    outcomes = [
        failed(rank, RuntimeError(f"Gloo: connection closed by peer [127.0.0.1]:{18000 + rank}"), f"line of {rank}")
        for rank in (0, 1, 2)
    ]
    outcomes.append(Outcome(3, 3, "died", {"text": "killed by SIGKILL (9)"}))
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    assert str(error) == (
        "the cell failed on rank 3 of 4: it was killed by SIGKILL (9); ranks 0-2 lost their connection to it"
    )
    first, second = error._blocks
    assert "rank 3" in first
    assert "ranks 0-2" in second
    assert "lost the connection to rank 3: RuntimeError: Gloo" in second
    assert "line of" not in second


def test_ranks_that_a_framework_ended_because_of_a_death_did_not_fail_themselves() -> None:
    reason = "F1123 04:27:35.57 13960 client.h:80] Terminating process because the JAX distributed service detected "
    tail = [reason + "fatal errors. This most likely indicates that another task died", "Fatal Python error: Aborted"]
    outcomes = [Outcome(0, 0, "died", {"text": "killed by SIGKILL (9)"})]
    outcomes += [Outcome(rank, rank, "died", {"text": "killed by SIGABRT (6)", "tail": tail}) for rank in (1, 2)]
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    assert str(error) == (
        "the cell failed on rank 0 of 3: it was killed by SIGKILL (9); ranks 1-2 lost their connection to it"
    )
    assert len(error._blocks) == 2
    assert "lost the connection to rank 0: JAX ended its process too" in error._blocks[1]
    # Where nothing says which went first, none is the others' damage.
    alone = CellError(CellResult(outcomes[1:], 0.1), outcomes[1:])
    assert str(alone).startswith("the cell failed on all 2 ranks: it was killed by SIGABRT (6)")


def test_a_failure_of_its_own_is_shown_beside_a_death() -> None:
    outcomes = [
        failed(0, ValueError("bad shape"), "own line"),
        Outcome(1, 1, "died", {"text": "killed by SIGKILL (9)"}),
    ]
    error = CellError(CellResult(outcomes, 0.1), outcomes)
    assert str(error).startswith("the cell failed on all 2 ranks: ")
    assert "own line" in error._blocks[1]


def test_tracebacks_that_differ_in_addresses_and_ports_are_one() -> None:
    outcomes = [
        failed(rank, OSError("x"), f"<obj at 0x7f{rank}ab>, [::1]:{5000 + rank}, 10.0.0.1:{6000 + rank}")
        for rank in (0, 1)
    ]
    outcomes.append(failed(2, OSError("x"), "<obj at 0x7fab> with 3 rows"))
    outcomes.append(failed(3, OSError("x"), "<obj at 0x7fab> with 4 rows"))
    assert len(CellError(CellResult(outcomes, 0.1), outcomes)._blocks) == 3


def test_an_error_says_its_cause_in_its_first_line() -> None:
    one = [failed(0, ValueError("bad shape\nmore"))]
    assert str(CellError(CellResult(one, 0.1), one)) == "the cell failed on its only rank: ValueError: bad shape"
    late = [Outcome(0, 0, "interrupted", {"timeout": 1.0, "why": ": the run took longer than 1 s (--timeout)"})]
    error = CellError(CellResult(late, 0.1), late)
    assert str(error) == "the cell timed out on rank 0 of 1"
    assert "timed out: the run took longer than 1 s" in error._blocks[0]


def test_a_module_that_the_nodes_lack_is_told_with_the_way_there() -> None:
    lacking = [failed(0, ModuleNotFoundError("No module named 'einops'", name="einops"))]
    assert "einops is not on the nodes: `%%sky --sync`" in CellError(CellResult(lacking, 0.1), lacking)._blocks[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB"),
        ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes."),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Failed to allocate request for 8.0GiB on device ordinal 0"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_rank_whose_device_has_no_memory_left_is_named_with_what_gives_some_back(name: str, text: str) -> None:
    end = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
    outcomes = [Outcome(0, 0, "ok"), Outcome(1, 1, "error", end)]
    error = CellError(CellResult(outcomes, 0.1), outcomes[1:])
    assert str(error).startswith(f"the cell failed on rank 1 of 2: {name}: {text[:20]}")
    assert "its device has no memory left for that" in error._blocks[0]
    assert "`%sky restart`" in error._blocks[0]


@pytest.mark.parametrize("kind", [CellError, BroadcastError])
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_of_ranks_can_be_sent_to_another_process(kind: type[CellError], copied: Any) -> None:
    outcomes = [ok(0, "fine"), failed(1, ValueError("wrong"))]
    error = copied(kind(CellResult(outcomes, 1.0), outcomes))
    assert type(error) is kind
    assert str(error) == str(kind(CellResult(outcomes, 1.0), outcomes))
    assert [(type(one), str(one)) for one in error.errors.values()] == [(ValueError, "wrong")]
    assert error.result.value(0) == "fine"


def test_a_cell_error_can_be_split_by_type() -> None:
    outcomes = [failed(0, ValueError("v")), failed(1, KeyError("k"))]
    matched, rest = CellError(CellResult(outcomes, 0.1), outcomes).split(ValueError)
    assert matched is not None
    assert rest is not None
    assert [type(one) for one in matched.exceptions] == [ValueError]
    assert [type(one) for one in rest.exceptions] == [KeyError]
