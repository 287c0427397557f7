"""What a run makes of batches: in their order, twice, too early, with gaps, and from agents that are not ours."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sky_jupyter as sky
from sky_jupyter.display.model import run_html
from sky_jupyter.display.model.run_model import RunModel
from sky_jupyter.display.terminal.line_view import TerminalRunView
from sky_jupyter.node.journal.journal import Journal
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol.journal_events import stop_of
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import Event, NoticeEvent, OutputEvent
from sky_jupyter.pool.runs.hang_detector import HangDetector
from sky_jupyter.pool.runs.input_requests import Question
from sky_jupyter.pool.runs.result import CellError, CellResult
from sky_jupyter.pool.runs.run import Run, new_id
from sky_jupyter.pool.runs.stacks import StackReport
from tests.pool.pools import begin, local_pool, run


def encoded(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def text(seq: int, words: str, rank: int = 0) -> dict[str, Any]:
    return {"seq": seq, "rank": rank, "kind": "stream", "name": "stdout", "text": words}


def end(seq: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"seq": seq, "rank": rank, "kind": "end", "status": "ok", **more}


class Heard:
    """A run on rank 0 of node 0 and rank 1 of node 1, and what its listener heard."""

    def __init__(self, nodes: dict[int, int] | None = None) -> None:
        self.events: list[Event] = []
        self.run = Run("r", {0: 0, 1: 1} if nodes is None else nodes, self.events.append)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, NoticeEvent)]

    def stdout(self, rank: int = 0) -> str:
        return "".join(self.run.outcomes[rank].stdout)


def test_batches_fill_outcomes_and_end_the_run() -> None:
    heard = Heard()
    assert heard.run.take(0, 0, 2, encoded(text(0, "a"), text(1, "b"))) is None
    assert heard.run.take(1, 0, 1, encoded(end(0, rank=1, writes=["x"]))) is None
    assert heard.run.left == [0]
    assert heard.run.take(0, 2, 1, encoded(end(2))) is None
    assert heard.stdout() == "ab"
    assert heard.run.over.is_set()
    assert heard.run.writes == {"x": {1}}
    assert heard.notices == []


def test_what_came_already_is_passed_over_and_the_rest_of_a_batch_is_not() -> None:
    heard = Heard()
    lines = [text(number, str(number)) for number in range(6)]
    heard.run.take(0, 0, 3, encoded(*lines[:3]))
    heard.run.take(0, 0, 3, encoded(*lines[:3]))
    heard.run.take(0, 1, 4, encoded(*lines[1:5]))
    heard.run.take(0, 0, 6, encoded(*lines))
    assert heard.stdout() == "012345"


def test_early_batches_wait_for_what_is_missing() -> None:
    heard = Heard()
    lines = [text(number, str(number)) for number in range(8)]
    assert heard.run.take(0, 6, 2, encoded(*lines[6:])) == 0
    assert heard.run.take(0, 2, 2, encoded(*lines[2:4])) == 0
    assert heard.run.take(0, 4, 2, encoded(*lines[4:6])) == 0
    assert heard.run.take(0, 3, 2, encoded(*lines[3:5])) == 0
    assert heard.stdout() == ""
    assert heard.run.take(0, 0, 2, encoded(*lines[:2])) is None
    assert heard.stdout() == "01234567"
    assert heard.notices == []


def test_early_batches_take_only_so_much_memory() -> None:
    heard = Heard()
    large = encoded(text(5, "x" * 1_000_000))
    for number in range(5, 10_000):
        assert heard.run.take(0, number, 1, large) == 0
    early = heard.run._early[0]
    assert sum(len(data) for _, data in early.values()) <= 9_000_000
    assert len(early) <= 256


def test_a_gap_is_shown_where_output_is_missing(tmp_path: Path) -> None:
    """From a real journal, in the outcomes and in each view."""
    journal = Journal(tmp_path / "r.jsonl", 20_000)
    for number in range(500):
        journal.append([{"rank": 0, "kind": "stream", "name": "stdout", "text": f"line {number}\n"}])
    journal.append([{"rank": 0, "kind": "end", "status": "ok"}])
    heard, model, view = Heard({0: 0}), RunModel("pool", [0]), TerminalRunView([0], results=True)
    at = 0
    while at < journal.next:
        data, following = journal.read(at)
        assert heard.run.take(0, at, following - at, data) is None
        at = following
    for event in heard.events:
        model.on_event(event)
        view.on_event(event)
    lines = heard.stdout().splitlines()
    (place,) = (index for index, line in enumerate(lines) if "dropped" in line)
    assert lines[place].startswith("… ")
    assert lines[place].endswith(" of output dropped (journal limit 20 kB) …")
    assert lines[0] == "line 0"
    assert lines[place - 1] == f"line {place - 1}"
    assert lines[-1] == "line 499"
    shown = run_html.to_text(model.snapshot(1000), 1000)
    assert lines[place] in shown
    assert lines[place] in run_html.to_html(model.snapshot(1000), 1000)
    assert heard.run.over.is_set()
    assert heard.notices == []


def test_only_the_rest_of_a_gap_is_told_where_its_begin_is_known() -> None:
    heard = Heard()
    heard.run.take(0, 0, 5, encoded(*(text(number, "x") for number in range(5))))
    gap = {"kind": "gap", "seq": 0, "count": 10, "bytes": 10_000, "why": "w", "streams": [[0, "stdout", 10_000]]}
    assert heard.run.take(0, 0, 11, encoded(gap, text(10, "y"))) is None
    assert heard.stdout() == "xxxxx\n… 5 kB of output dropped (w) …\ny"


def test_a_gap_that_is_nobodys_is_told_beside_the_output() -> None:
    heard = Heard()
    gap = {"kind": "gap", "seq": 0, "count": 3, "bytes": 0, "why": "bad\x1b[2J\nluck", "streams": [[1, "stdout", 5]]}
    heard.run.take(0, 0, 3, encoded(gap))
    assert heard.notices == ["node 0: a part of its output is missing (bad [2J luck)"]
    assert heard.stdout(0) == heard.stdout(1) == ""


def test_a_notice_of_a_node_is_told_and_not_without_end() -> None:
    heard = Heard()
    said = [{"kind": "notice", "seq": number, "text": "the disk of this node is full"} for number in range(1000)]
    heard.run.take(0, 0, 1000, encoded(*said))
    assert heard.notices[0] == "node 0: the disk of this node is full"
    assert len(heard.notices) == 20


@pytest.mark.parametrize(
    "broken",
    [
        b"no json\n",
        b"[1, 2]\n",
        b"5\n",
        b'{"rank": 0}\n',
        b"\xff\xfe\x00\n",
        b"[" * 50_000 + b"\n",
        b"9" * 10_000 + b"\n",
        encoded(text(7, "a lie")),
        encoded({**text(0, ""), "seq": [1]}),
        encoded({**text(1, "", rank=1), "text": ["not a text"]}),
        encoded({**text(1, "", rank=1), "text": None}),
        encoded({"seq": 1, "kind": "display", "rank": 1, "data": "text"}),
        encoded({"seq": 1, "kind": "gap", "count": 10**18}),
        encoded({"seq": 1, "kind": "gap", "count": -3}),
        encoded({"seq": 1, "kind": "gap", "count": "many", "bytes": 1}),
    ],
)
def test_a_broken_line_costs_itself_and_is_told_once(broken: bytes) -> None:
    heard = Heard()
    for start in (0, 3):
        data = encoded(text(start, "a")) + broken.replace(b'"seq": 1', b'"seq": %d' % (start + 1))
        assert heard.run.take(1, start, 3, data + encoded(text(start + 2, "b", rank=1))) is None
    heard.run.take(1, 6, 1, encoded(end(6, rank=1)))
    assert heard.stdout(1) == "bb"
    assert heard.run.left == [0]
    (notice,) = heard.notices
    assert notice.startswith("node 1 sent what cannot be read; ")


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "begin", "mine": [0]},
        {"kind": "later", "rank": 0, "text": 5},
        {"kind": ["stream"], "rank": 5},
        {"rank": 9, "kind": "stream", "name": "stdout", "text": "nobody's"},
        {"rank": 1, "kind": "stream", "name": "stdout", "text": "another node's"},
        {"rank": 1, "kind": "end", "status": "ok"},
        {"rank": [0], "kind": "end", "status": "ok"},
        {"rank": True, "kind": "stream", "name": "stdout", "text": "x"},
        {"rank": "0", "kind": "stream", "name": "stdout", "text": "x"},
        {"rank": -1, "kind": "stream", "name": "stdout", "text": "x"},
        {"kind": "notice", "text": 5},
    ],
)
def test_an_event_of_an_unknown_kind_or_of_a_rank_elsewhere_changes_nothing(event: dict[str, Any]) -> None:
    heard = Heard()
    assert heard.run.take(0, 0, 2, encoded({"seq": 0, **event}, text(1, "on"))) is None
    assert heard.stdout(0) == "on"
    assert heard.stdout(1) == ""
    assert heard.run.left == [0, 1]
    assert heard.notices == []


@pytest.mark.parametrize(
    ("node", "first", "count", "data"),
    [
        (7, 0, 1, b""),
        ("0", 0, 1, b""),
        ([0], 0, 1, b""),
        (True, 0, 1, b""),
        (0, -1, 5, b""),
        (0, 0, -5, b""),
        (0, 0.0, 1, b""),
        (0, "0", 1, b""),
        (0, 0, 2**70, b""),
        (0, 2**70, 1, b""),
        (0, 0, None, b""),
        (0, 0, 1, "text"),
        (0, 0, 1, None),
        (0, 0, 0, b"{}"),
        (0, 0, 2**50, b""),
        (0, 2**50, 2**50, b"{}"),
    ],
)
def test_a_batch_with_wrong_numbers_breaks_none_that_follow(node: Any, first: Any, count: Any, data: Any) -> None:
    heard = Heard()
    heard.run.take(node, first, count, data)
    assert heard.run.take(0, 0, 2, encoded(text(0, "on"), end(1))) is None
    assert heard.stdout() == "on"
    assert heard.run.left == [1]


def test_a_batch_with_fewer_lines_than_it_says_is_asked_for_again() -> None:
    heard = Heard()
    assert heard.run.take(0, 0, 5, encoded(text(0, "a"), text(1, "b"))) == 2
    assert heard.run.take(0, 2, 1, encoded(text(2, "c"), text(3, "too many"))) is None
    assert heard.run.take(0, 3, 1, encoded(text(3, "d"))) is None
    assert heard.stdout() == "abcd"
    assert len(heard.notices) == 1


def test_fields_of_the_wrong_type_in_an_end_do_no_harm() -> None:
    heard = Heard({0: 0})
    wrong = {
        "traceback": "text",
        "writes": {"a": 1},
        "modules": [5],
        "tail": 7,
        "text": [],
        "ename": {},
        "exception": 5,
    }
    heard.run.take(0, 0, 1, encoded(end(0, **{"status": "exploded", **wrong})))
    assert heard.run.over.is_set()
    (outcome,) = heard.run.outcomes.values()
    assert outcome.status == "error"
    assert heard.run.writes == {}
    error = CellError(CellResult([outcome], 0.1), [outcome])
    assert "failed" in str(error)
    assert error._render_traceback_()


def test_a_listener_that_fails_costs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ValueError("a view is broken")

    deaf = Run("r", {0: 0}, fail)
    with caplog.at_level(logging.ERROR):
        deaf.take(0, 0, 2, encoded(text(0, "a"), end(1)))
    assert "".join(deaf.outcomes[0].stdout) == "a"
    assert deaf.over.is_set()
    assert "a view is broken" in caplog.text


def test_a_run_that_goes_anywhere_takes_the_rank_that_speaks_first() -> None:
    heard = Heard({})
    assert heard.run.take(3, 0, 2, encoded({"seq": 0, "kind": "begin"}, text(1, "here", rank=6))) is None
    heard.run.take(2, 0, 1, encoded(text(0, "not here", rank=4)))
    heard.run.take(10**9, 0, 1, encoded(text(0, "nowhere", rank=6)))
    assert list(heard.run.outcomes) == [6]
    assert heard.stdout(6) == "here"


@pytest.mark.parametrize("width", ["NaN", "Infinity", "-Infinity", "1e999", "-5", "true", '"3"', "[]"])
def test_an_image_of_no_possible_size_is_shown(width: str) -> None:
    heard, model = Heard(), RunModel("pool", [0])
    shown = '"data": {"image/png": "cG5n"}, "metadata": {"image/png": {"width": %s}}'
    line = '{"seq": 0, "rank": 0, "kind": "display", ' + shown + "}"
    heard.run.take(0, 0, 1, (line % width).encode())
    model.on_event(heard.events[0])
    assert "<img" in run_html.to_html(model.snapshot(10))


# -- with a pool -----------------------------------------------------------------------------------


def small_journals(info: Any) -> Any:
    """Entered in the agents: their journals are small."""
    import contextlib
    from unittest import mock

    from sky_jupyter.node.journal.journal import Journal

    make = Journal.__init__
    stack = contextlib.ExitStack()
    small = mock.patch.object(Journal, "__init__", lambda self, path, limit=0, spares=None: make(self, path, 200_000))
    stack.enter_context(small)
    return stack


@pytest.mark.slow
def test_a_flood_keeps_its_first_and_its_last_lines_in_the_journal() -> None:
    plugin = sky.Plugin.create("small_journals").with_around_app(small_journals)
    with local_pool(nodes=1, plugins=(plugin,)) as pool:
        # Not the same lines: each event is flushed by itself.
        code = "import sys\nfor i in range(5_000): print('line', i, '.' * 40); sys.stderr.write(f'{i} ')"
        current = begin(pool, code)
        pool.attend(current)
        whole = "".join(current.outcomes[0].stdout)
        heard, at = Heard({0: 0}), 0
        assert pool.control is not None
        while not heard.run.over.is_set():
            answer = loop().call(pool.control.ask(rpc.READ_EVENTS, [0], run=current.id, start=at))[0]
            heard.run.take(0, at, answer["next"] - at, answer["data"])
            assert answer["next"] > at
            at = answer["next"]
        folder = pool.hosts[0].folder / "n0" / "journal"
        assert sum(path.stat().st_size for path in folder.iterdir()) < 250_000
    # What was read live is all of it; who comes later is told of the gap.
    assert [line.split()[1] for line in whole.splitlines()] == [str(number) for number in range(5_000)]
    lines = heard.stdout().splitlines()
    (place,) = (index for index, line in enumerate(lines) if "of output dropped (journal limit 200 kB)" in line)
    assert lines[0].startswith("line 0 .")
    assert lines[-1].startswith("line 4999 .")
    assert place > 100
    assert heard.run.outcomes[0].status == "ok"
    assert heard.notices == []


FORGED = """
import asyncio
import json
kernel = get_ipython().kernel
parent = kernel.get_parent("shell")["header"]

def send(*parts):
    signed = kernel.session.sign(list(parts))
    kernel.iopub_socket.send_multipart([b"topic", b"<IDS|MSG>", signed, *parts])

def header(kind):
    count = header.count = getattr(header, "count", 0) + 1
    return json.dumps({"msg_id": str(count), "msg_type": kind, "version": "5.3"}).encode()

deep = []
for _ in range(400): deep = [deep]
print("before", flush=True)
mine = json.dumps(parent, default=str).encode()
for kind, content in [
    ("stream", {}), ("stream", {"name": 5, "text": 5}), ("stream", []), ("stream", None), ("stream", "text"),
    ("display_data", {"data": 5}), ("display_data", {"data": {"a/b": deep}}), ("clear_output", [1]),
    ("display_data", {"data": {"text/plain": 5}, "metadata": [], "transient": "x"}), (["stream"], {"text": "x"}),
]:
    send(header(kind), mine, b"{}", json.dumps(content).encode())
for of in ({"msg_id": [1]}, {"msg_id": "another"}, [1, 2], 5, "x", None):
    for kind in ("sky_end", "stream"):
        send(header(kind), json.dumps(of).encode(), b"{}", b'{"status": "ok", "name": "stdout", "text": "nobody"}')
for part in [b"[" * 100_000, b"5", b"[]", b"null", b"\\xff", b'"text"', b'{"msg_id": {}}', b"{}"]:
    send(part, b"{}", b"{}", b"{}")
    send(header("stream"), part, b"{}", b"{}")
    send(header("stream"), b"{}", part, b"{}")
    send(header("stream"), mine, b"{}", part)
kernel.iopub_socket.send_multipart([b""])
kernel.iopub_socket.send_multipart([b"topic", b"\\xff"])
print("after", flush=True)
"through"
"""


def test_a_cell_that_forges_messages_of_its_kernel_ends_as_any_other() -> None:
    with local_pool(nodes=1) as pool:
        result = run(pool, FORGED)
        assert result.values == ["through"]
        assert result.stdout(0) == "before\nafter\n"
        assert run(pool, "1 + 1").values == [2]


# -- batches of any content ------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 8)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
bundles = st.dictionaries(
    st.sampled_from(["text/plain", "text/html", "image/png", "image/svg+xml", "application/json"]), values
)
events = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["stream", "display", "update", "result", "clear", "end", "gap", "begin", "notice"])
        | values,
        "rank": st.integers(0, 1) | values,
        "count": st.integers(-1, 9) | st.just(10**18) | values,
        "bytes": st.integers(0, 10**7) | values,
        "why": values,
        "streams": values
        | st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["stdout", "stderr", ""]), st.integers(0))),
        "name": st.sampled_from(["stdout", "stderr"]) | values,
        "text": st.text(max_size=5) | values,
        "data": bundles | values,
        "metadata": values
        | st.dictionaries(st.just("image/png"), st.dictionaries(st.sampled_from(["width", "height"]), values)),
        "display_id": st.sampled_from(["a", "b"]) | values,
        "wait": values,
        "status": st.sampled_from(["ok", "error", "interrupted", "died", "lost"]) | values,
        **dict.fromkeys(("traceback", "writes", "modules", "tail", "ename", "evalue", "exception", "value"), values),
        "elapsed": values,
    },
)
broken_lines = st.sampled_from([b"", b"x", b"[]", b"\xff", b"{}", b"[" * 5000, b"\x00", b'"', b"1e999"])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    first = draw(st.integers(0, 12))
    lines = []
    for number in range(draw(st.integers(0, 5))):
        seq = draw(st.just(first + number) | st.integers(-1, 14) | values)
        lines.append(draw(broken_lines | events.map(lambda event, seq=seq: json.dumps({**event, "seq": seq}).encode())))
    count = draw(st.just(len(lines)) | st.integers(-1, 12) | st.sampled_from([2**53 - 1, 10**30, None, "1"]))
    node = draw(st.integers(0, 1) | values)
    return node, draw(st.just(first) | values), count, b"\n".join(lines) + b"\n"


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(batches(), max_size=6), st.booleans())
def test_no_batch_raises_nor_breaks_a_view_nor_a_later_batch(said: list[Any], anywhere: bool) -> None:
    model, view = RunModel("pool", [0, 1]), TerminalRunView([0, 1], results=True)
    errors: list[Exception] = []

    def listen(event: Event) -> None:
        try:
            model.on_event(event)
            view.on_event(event)
        except Exception as error:
            errors.append(error)

    fed = Run("r", {} if anywhere else {0: 0, 1: 1}, listen)
    for batch in said:
        fed.take(*batch)
    assert errors == []
    final = model.snapshot(100)
    run_html.to_html(final).encode()
    run_html.to_text(final).encode()
    outcomes = list(fed.outcomes.values())
    for outcome in outcomes:
        "".join([*outcome.stdout, *outcome.stderr]).encode()
        outcome.status = outcome.status if outcome.status != "running" else "lost"
    failed = [outcome for outcome in outcomes if outcome.failed]
    if failed:
        "\n".join(CellError(CellResult(outcomes, 0.1), failed)._render_traceback_()).encode()
    # Whatever was sent, what comes now under the right numbers is taken.
    if not anywhere and fed.next(0) < 100:
        heard: list[Event] = []
        fed.listener = heard.append
        start = fed.next(0)
        fed._early.clear()
        assert fed.take(0, start, 1, encoded(text(start, "on"))) is None
        assert [event.event["text"] for event in heard if isinstance(event, OutputEvent)] == ["on"]


# Questions to the user.


def ask(seq: int, id: str, rank: int = 0) -> dict[str, Any]:
    return {"seq": seq, "rank": rank, "kind": "ask", "id": id, "prompt": "who? ", "password": False}


def asked(seq: int, id: str, rank: int = 0) -> dict[str, Any]:
    return {"seq": seq, "rank": rank, "kind": "asked", "id": id}


def stopped(seq: int, id: str, rank: int = 0) -> dict[str, Any]:
    return {"seq": seq, "rank": rank, **stop_of(id)}


@pytest.mark.parametrize("waits", [ask, stopped])
def test_time_in_which_a_rank_waits_for_the_user_counts_for_no_time_limit(waits: Callable[..., dict[str, Any]]) -> None:
    heard = Heard()
    heard.run.questions.on_ask = [].append if waits is ask else None
    heard.run.take(0, 0, 1, encoded(waits(0, "q")))

    async def wait() -> tuple[bool, bool]:
        waiting = asyncio.ensure_future(heard.run.until_in_work(lambda: not heard.run.left, 0.05))
        await asyncio.sleep(0.3)
        early = waiting.done()
        heard.run.take(0, 1, 1, encoded(asked(1, "q")))
        return early, await waiting

    before = heard.run.worked
    assert asyncio.run(wait()) == (False, False)
    assert heard.run.worked - before >= 0.05


def test_a_rank_that_a_debugger_has_stopped_asks_nothing_and_waits_until_its_end() -> None:
    heard = Heard()
    questions: list[Question] = []
    heard.run.questions.on_ask = questions.append
    heard.run.take(0, 0, 1, encoded(stopped(0, "q")))
    assert (heard.run.questions.are_open, questions) == (True, [])
    heard.run.take(0, 1, 1, encoded(end(1)))
    assert not heard.run.questions.are_open


def test_a_view_says_that_a_rank_asks_or_is_stopped_until_it_goes_on() -> None:
    model = RunModel("pool", [0], unseen=[1])
    run = Run("r", {0: 0, 1: 1}, model.on_event)
    run.questions.on_ask = [].append  # type: ignore[assignment]

    def said() -> list[str]:
        return run_html.header(model.snapshot(10))[3:]

    run.take(0, 0, 1, encoded(ask(0, "q")))
    assert said() == ["running", "rank 0 asks"]
    run.take(1, 0, 1, encoded(stopped(0, "r", rank=1)))
    assert said() == ["running", "rank 0 asks", "rank 1 stopped"]
    assert "rank 1 stopped" in run_html.to_html(model.snapshot(10))
    run.take(0, 1, 1, encoded(asked(1, "q")))
    assert said() == ["running", "rank 1 stopped"]
    run.take(1, 1, 1, encoded(end(1, rank=1)))
    assert said() == ["running, 1 of 2 done"]


def test_time_limits_hold_where_nobody_can_be_asked() -> None:
    heard = Heard()
    heard.run.take(0, 0, 1, encoded(ask(0, "q")))
    assert not heard.run.questions.are_open
    assert asyncio.run(heard.run.until_in_work(lambda: not heard.run.left, 0.05)) is False


def test_a_question_is_withdrawn_when_its_rank_ends_or_waits_no_longer() -> None:
    heard = Heard()
    questions: list[Question] = []
    heard.run.questions.on_ask = questions.append
    heard.run.take(0, 0, 3, encoded(ask(0, "q"), ask(1, "q"), asked(2, "q")))
    heard.run.take(1, 0, 2, encoded(ask(0, "r", rank=1), end(1, rank=1)))
    heard.run.take(0, 3, 2, encoded(ask(3, "s"), {"seq": 4, "rank": 0, "kind": "ask", "prompt": 7}))
    assert [question.text for question in questions] == [f"rank {rank} asks: who? " for rank in (0, 1, 0)]
    assert [question.answer.cancelled() for question in questions] == [True, True, False]
    assert "lacks what belongs to its kind" in heard.notices[0]


def test_a_run_that_waits_for_the_user_does_not_hang() -> None:
    heard, looks = Heard(), []
    heard.run.questions.on_ask = [].append

    async def look(run: Run, native: bool) -> StackReport:
        looks.append(run)
        raise AssertionError

    async def attend() -> None:
        heard.run.take(0, 0, 1, encoded(ask(0, "q")))
        silence = asyncio.ensure_future(HangDetector(heard.run, look, after=0.01).attend())
        await asyncio.wait([silence], timeout=0.2)
        silence.cancel()

    asyncio.run(attend())
    assert not looks


def test_no_two_runs_have_the_same_id() -> None:
    ids = [new_id() for _ in range(200_000)]
    assert len(set(ids)) == len(ids)
    assert {len(id) for id in ids} == {8}
