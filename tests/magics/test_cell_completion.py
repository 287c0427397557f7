"""Tab, Shift-Tab and ``name?`` in ``%%sky`` cells, in a real kernel with a real pool."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient

from sky_jupyter.magics import cell_questions, path_completion
from sky_jupyter.magics.cell_text import sky_cell
from sky_jupyter.session import jedi_completion
from tests.conftest import MARK, marked_processes
from tests.magics.notebook import Notebook, notebook

# Names that no source has: the ranks alone know them.
SETUP = """
import sky_jupyter
rank = sky_jupyter.instance_info().rank
class Net:
    "A net."
    def fit(self, data, epochs=1):
        "Fit it."
vars()["model" + "_there"] = Net()
vars()["only_of" + f"_{rank}"] = rank
vars()["prices" + "_there"] = {"alpha": 1, "beta": 2}
class Endless:
    def __dir__(self):
        while True:
            pass
endless_there = Endless()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("book")


@pytest.fixture(scope="module")
def book(folder) -> Iterator[Notebook]:
    with notebook(folder) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        yield opened
    end = time.monotonic() + 60
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end, "the notebook's pools outlive it"
        time.sleep(0.05)


@pytest.fixture
def two(book) -> Notebook:
    """The notebook with a pool of two nodes that have names of their own."""
    if "only_of_" not in book.run("%sky names").stream():
        assert book.run("%sky up --nodes 2").status == "ok"
        done = book.run(f"%%sky --quiet\n{SETUP}")
        assert done.status == "ok", done.outputs
    return book


def offered(book: Notebook, cell: str, wanted: Callable[[list[str]], bool] = bool) -> list[str]:
    """What Tab offers at the end of a cell, in order; pressed again until it is what is wanted."""
    end = time.monotonic() + 60
    while True:
        found = book.client.complete(cell, reply=True, timeout=60)["content"]
        matches = [cell[: found["cursor_start"]] + match for match in found["matches"]]
        last = [match[cell.rfind("\n") + 1 :] for match in matches]
        if wanted(last):
            return last
        # On a busy machine a rank may be late; then jedi answers, or the notebook alone.
        assert time.monotonic() < end, last
        time.sleep(0.05)


def described(book: Notebook, cell: str, wanted: str, detail: int = 0, cursor: int | None = None) -> str:
    """What Shift-Tab shows at the end of a cell, without colours; pressed again until it says what is wanted."""
    end = time.monotonic() + 60
    while True:
        found = book.client.inspect(cell, cursor, detail_level=detail, reply=True, timeout=60)["content"]
        text = re.sub(r"\x1b\[[0-9;]*m", "", found["data"].get("text/plain", ""))
        if wanted in text:
            return text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def runs(book: Notebook) -> int:
    return len(book.run("%sky runs").stream().splitlines())


def test_nothing_is_started_for_a_question(book):
    if book.run("%sky names").status == "ok":
        book.run("%sky down --all")
    book.run("here = 5")
    assert "here" in offered(book, "%%sky\nher")
    assert "int" in described(book, "%%sky\nhere", "int")
    (page,) = book.run("%%sky\nhere?").payload
    assert "int" in page["data"]["text/plain"]
    assert "not found" in book.run("%%sky\nnowhere?").stream()
    assert "there is no pool" in book.run("%sky names").error


def test_tab_knows_what_an_idle_rank_has(two):
    offered(two, "%%sky\nmodel_th", lambda found: found == ["model_there"])
    offered(
        two,
        "# a note\n%%sky --quiet\n\nfor i in range(3):\n    model_there.f",
        lambda found: found == ["    model_there.fit"],
    )
    assert offered(two, "%%sky\nprices_there['", lambda found: len(found) == 2) == [
        "prices_there['alpha",
        "prices_there['beta",
    ]


def test_the_head_answers_or_the_rank_that_the_line_names(two):
    offered(two, "%%sky\nonly_of", lambda found: found == ["only_of_0"])
    offered(two, "%%sky --on 1\nonly_of", lambda found: found == ["only_of_1"])


def test_names_of_the_notebook_follow_those_of_the_nodes(two):
    two.run("a_model_here = model_here = 1")
    offered(two, "%%sky\nmodel_", lambda found: found == ["model_there", "model_here"])
    offered(two, "%%sky\nlocal_name = 1\nlocal_", lambda found: "local_name" in found)
    # Cells of the notebook itself are its own matter.
    assert offered(two, "model_") == ["model_here"]


def test_shift_tab_describes_what_a_rank_has(two):
    assert "A net." in described(two, "%%sky\nmodel_there", "Net object at")
    assert "Signature: model_there.fit(data, epochs=1)" in described(two, "%%sky\nmodel_there.fit(", "Fit it.")
    described(two, "%%sky\nmodel_there.fit", "def fit(self, data, epochs=1)", detail=1)
    two.run("seen_here = 'of the notebook'")
    described(two, "%%sky\nseen_here", "of the notebook")
    reply = two.client.inspect("model_there", reply=True, timeout=60)["content"]
    assert not reply["found"]


def shown(book: Notebook, question: str) -> str:
    """What the pager shows; asked again while the rank is late."""
    end = time.monotonic() + 60
    while not (pages := book.run(question).payload):
        assert time.monotonic() < end, "no rank answers"
    (page,) = pages
    return str(page["data"]["text/plain"])


def test_a_question_shows_one_ranks_answer_as_in_the_notebook_and_is_no_run(two):
    before = runs(two)
    assert "A net." in shown(two, "%%sky\nmodel_there?")
    assert "epochs" in shown(two, "%%sky\nmodel_there.fit??")
    assert runs(two) == before


def test_a_question_among_other_lines_is_answered_once(two):
    shown = two.run("%%sky\nx = 1\nmodel_there?").run
    assert shown.count("String form") == 1
    assert "A net." in two.run("%%sky --on 1\nx = 1\nmodel_there?").run


def test_cells_that_run_on_the_pool_by_themselves_know_its_names_too(two):
    two.run("%sky auto")
    try:
        offered(two, "model_there.f", lambda found: found == ["model_there.fit"])
        described(two, "model_there", "A net.")
        assert "A net." in shown(two, "model_there?")
        assert "model_there" not in offered(two, "%%local\nmodel_", lambda found: True)
    finally:
        two.run("%sky auto off")


def test_a_busy_rank_is_answered_for_from_the_cells(two, folder):
    go = folder / "go"
    go.unlink(missing_ok=True)
    cell = (
        "import os, time, json as formats\n"
        "def later(a, b=2):\n    'Doc of later.'\n    return a\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)"
    )
    assert two.run(f"%%sky --detach\n{cell}").status == "ok"
    try:
        offered(two, "%%sky\nlate", lambda found: "later" in found)
        offered(two, "%%sky\nformats.dum", lambda found: found == ["formats.dump", "formats.dumps"])
        text = described(two, "%%sky\nlater(", "Doc of later.")
        assert "later(a, b=2)" in text
        assert "Rank 0 is busy" in text
        described(two, "%%sky\nlater", "return a", detail=1)
        assert not go.exists()
    finally:
        go.touch()
    assert two.run("%sky wait").status == "ok"


def test_code_that_a_question_runs_is_stopped_when_a_cell_comes(two):
    offered(two, "%%sky\nendless_there.", lambda found: True)
    assert two.run("%%sky\nprint('next')").body == ["[0-1] next"]
    offered(two, "%%sky\nmodel_there.f", lambda found: found == ["model_there.fit"])


def test_paths_are_completed_here_and_on_the_nodes(two, folder):
    for name in ("to send.txt", "sent.txt", "far/away.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert offered(two, "%sky put to") == ["%sky put to\\ send.txt"]
    assert offered(two, "%sky put 'to s") == ["%sky put 'to send.txt"]
    offered(two, "%sky get --on 1 fa", lambda found: found == ["%sky get --on 1 far/"])
    offered(two, "%sky get far/", lambda found: found == ["%sky get far/away.bin"])


def test_unloading_leaves_nothing(tmp_path):
    with notebook(tmp_path) as opened:
        before = opened.value("len(get_ipython().Completer.custom_matchers)")
        opened.run("%load_ext sky_jupyter")
        assert opened.value("'do_inspect' in vars(get_ipython().kernel)")
        opened.run("%unload_ext sky_jupyter")
        assert not opened.value("'do_inspect' in vars(get_ipython().kernel)")
        assert opened.value("len(get_ipython().Completer.custom_matchers)") == before
        assert "int" in described(opened, "%%sky\nint", "int")


class OtherKernel:
    """A kernel that inspects in a way of its own."""

    def do_inspect(self, code: str, cursor: int, detail: int = 0, omit: Any = ()) -> tuple[str, int, int]:
        return code, cursor, detail


def test_other_kernels_and_later_hooks_are_left_as_they_are():
    shell = InteractiveShell()
    shell.kernel = kernel = OtherKernel()
    questions = cell_questions.install(shell)
    assert kernel.do_inspect("x", 1, 1, set()) == ("x", 1, 1)
    assert kernel.do_inspect("%%sky\nx", 7, 0) == ("%%sky\nx", 7, 0)
    hooked = kernel.do_inspect
    kernel.do_inspect = later = functools.partial(hooked)
    cell_questions.remove(questions)
    assert kernel.do_inspect is later
    assert kernel.do_inspect("x", 1, 0, ()) == ("x", 1, 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("%%sky\nx", "x"),
        ("# note\n\n%%sky --on 1 \nx\ny", "x\ny"),
        ("%%sky", ""),
        ("x\n%%sky\ny", None),
        ("%%skyline\nx", None),
        ("%sky names", None),
        ("", None),
    ],
)
def test_the_code_of_a_cell_begins_below_its_line(text, code):
    cell = sky_cell(text)
    assert (cell and cell.code) == code
    assert cell is None or text[cell.start :] == code


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%sky put ", ("", ["a\\ b.txt", "sub/"])),
        ("%sky put a", ("a", ["a\\ b.txt"])),
        ("%sky put a\\ ", ("a\\ ", ["a\\ b.txt"])),
        ('%sky put "a ', ('"a ', ['"a b.txt'])),
        ("%sky put x ", ("", [])),
        ("%sky put --on 0 su", ("su", ["sub/"])),
        ("%sky get x sub/", ("sub/", ["sub/c"])),
        ("%sky put x y z", ("z", [])),
        ("%sky put --o", None),
        ("%sky put --on ", None),
        ("%sky pull x", None),
        ("%sky put", None),
    ],
)
def test_the_paths_of_this_machine_are_quoted_as_the_line_needs(line, found, tmp_path, monkeypatch):
    (tmp_path / "a b.txt").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c").touch()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    assert path_completion.complete(line) == found


def test_only_the_newest_cells_are_read_where_there_are_many():
    text = jedi_completion.joined([f"n{number} = '{'x' * 10_000}'" for number in range(20)])
    assert "n19" in text
    assert "n0 " not in text
    assert len(text) < 60_000


class ControlChannel:
    """Another client of the notebook's kernel, which asks while a cell runs."""

    def __init__(self, book: Notebook) -> None:
        self.client = BlockingKernelClient(connection_file=book.manager.connection_file)
        self.client.load_connection_file()
        self.client.start_channels(shell=False, stdin=False, hb=False)

    def ask(self, kind: str, **content: Any) -> dict[str, Any]:
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])


def test_a_page_is_answered_while_the_notebook_waits_for_its_cell(two, folder):
    stays = folder / "stays"
    stays.touch()
    assert two.run("%%sky\nimport os, time\ndef waited_for(a):\n    'Doc of it.'").status == "ok"
    channel = ControlChannel(two)
    cell = f"%%sky\nprint('begun', flush=True)\nwhile os.path.exists({str(stays)!r}):\n    time.sleep(0.05)"
    running = threading.Thread(target=two.run, args=(cell,))
    running.start()
    try:
        while channel.ask("sky_request", action="runs", count=1)["runs"][0]["state"] != "running":
            time.sleep(0.05)
        text, found = "%%sky\nwaited_", {"found": False}
        while not found["found"]:
            # On a busy machine jedi loads for longer than a page is kept waiting.
            found = channel.ask("sky_complete_request", code=text, cursor_pos=len(text))
        assert found["matches"] == ["waited_for"]
        assert (found["cursor_start"], found["cursor_end"]) == (len("%%sky\n"), len(text))
        assert found["metadata"]["_jupyter_types_experimental"][0]["type"] == "function"
        text = "%%sky\nwaited_for("
        found = channel.ask("sky_inspect_request", code=text, cursor_pos=len(text), detail_level=0)
        assert "Doc of it." in found["data"]["text/plain"]
        # What is none of ours is the kernel's own to answer, once it is free.
        assert channel.ask("sky_complete_request", code="waited_", cursor_pos=7) == {"status": "ok", "found": False}
        assert "'cursor_pos' is a number" in channel.ask("sky_inspect_request", code="a", cursor_pos=2)["message"]
        assert "'code' is a text" in channel.ask("sky_complete_request", code=1, cursor_pos=0)["message"]
        assert running.is_alive()
    finally:
        stays.unlink()
        running.join()
        channel.client.stop_channels()


def test_what_is_late_is_over_before_ipython_asks_jedi_too(monkeypatch):
    begun, ends, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> list[Any]:
        begun.set()
        ends.wait(60)
        ended.set()
        return []

    late = types.SimpleNamespace(complete=lambda *place: work())
    monkeypatch.setattr(jedi_completion, "_script", lambda text: late)
    assert jedi_completion.complete([], "x", 1, 0.01) is None
    assert begun.wait(60)
    waiting = threading.Thread(target=jedi_completion.settle, args=(60,))
    waiting.start()
    assert waiting.is_alive()
    ends.set()
    waiting.join(60)
    assert ended.is_set()


def test_jedi_is_loaded_once_there_is_a_pool_and_the_notebook_is_idle(tmp_path):
    # Whether it has worked: IPython 8 imports its package with its own.
    loaded = "from sky_jupyter.session import jedi_completion; print(jedi_completion.is_loaded())"
    with notebook(tmp_path) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        assert opened.run(loaded).stream() == "False\n"
        assert opened.run("%%sky\n1").status == "ok"
        end, pause = time.monotonic() + 120, 1.0
        while opened.run(loaded).stream() == "False\n":
            # Each look is a cell, after which the notebook has to be idle again.
            assert time.monotonic() < end
            time.sleep(pause)
            pause += 1
        assert opened.run("%sky down").status == "ok"


def test_the_first_tab_has_what_a_rank_knows_while_jedi_is_still_loading(tmp_path):
    late = """import sys, threading
from sky_jupyter.session import jedi_completion
may_load, script = threading.Event(), jedi_completion._script
jedi_completion._script = lambda text: may_load.wait() and script(text)
notebooks_own = 5"""
    with notebook(tmp_path) as opened:
        assert opened.run(f"%load_ext sky_jupyter\n{late}").status == "ok"
        assert opened.run("%%sky\nvars()['model' + '_there'] = 1").status == "ok"
        assert offered(opened, "%%sky\nmodel_t") == ["model_there"]
        assert "notebooks_own" in offered(opened, "%%sky\nno", lambda found: "notebooks_own" in found)
        assert opened.run("print(jedi_completion.is_loaded())").stream() == "False\n", "nobody has waited for it"
        opened.run("may_load.set()")
        assert opened.run("%sky down").status == "ok"


def test_jedi_is_not_loaded_beside_ipythons_question(monkeypatch):
    made: list[str] = []
    monkeypatch.setattr(jedi_completion, "_script", made.append)
    jedi_completion.warm(lambda: False)
    jedi_completion.settle(60)
    assert not made
    jedi_completion.warm(lambda: True)
    jedi_completion.settle(60)
    assert made
