"""What code on ranks asks the user of a notebook: `input`, `getpass` and debuggers, in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.magics.notebook import Cell, Notebook, notebook

SECRET = "open sesame, please"
RANK = "import sky_jupyter; rank = sky_jupyter.instance_info().rank"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("asking")
    with notebook(folder) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        assert opened.run("%sky up --nodes 2").status == "ok"
        assert opened.run(f"%%sky --quiet\n{RANK}").status == "ok"
        yield opened
        opened.run("%sky down")


def printed(book: Notebook) -> list[str]:
    """What each rank printed in the last run."""
    return book.value("[_sky.stdout(rank) for rank in _sky.ranks]")


def test_a_question_of_a_rank_is_answered_in_the_notebook_while_the_others_go_on(book: Notebook) -> None:
    cell = book.run("%%sky\nprint('before')\nname = input('who? ') if rank else 'nobody'\nname", answers=["Ada "])
    assert cell.status == "ok", cell.error
    assert cell.asked == [("rank 1 asks: who? ", False)]
    assert book.value("list(_sky)") == ["nobody", "Ada "]
    assert printed(book) == ["before\n", "before\nwho? Ada \n"]


def test_ranks_that_ask_at_once_are_asked_one_after_another(book: Notebook) -> None:
    cell = book.run("%%sky --quiet\nint(input('n? ')) * int(input('m? '))", answers=["2", "3", "4", "5"])
    assert cell.status == "ok", cell.error
    first, second = (book.value(f"_sky[{rank}]") for rank in (0, 1))
    assert sorted(text for text, _ in cell.asked) == sorted(f"rank {r} asks: {v}? " for r in (0, 1) for v in "nm")
    given = {"rank 0": 1, "rank 1": 1}
    for (text, _), answer in zip(cell.asked, (2, 3, 4, 5), strict=True):
        given[text[:6]] *= answer
    assert [first, second] == [given["rank 0"], given["rank 1"]]


def test_a_password_is_in_no_output_and_in_no_file_of_the_pool(book: Notebook) -> None:
    code = "import getpass, os, hashlib\nhashlib.sha256(getpass.getpass('key: ').encode()).hexdigest() if rank else ''"
    cell = book.run(f"%%sky\n{code}", answers=[SECRET])
    assert cell.asked == [("rank 1 asks: key: ", True)]
    folders = book.run("%%sky --quiet\nimport os; os.path.dirname(os.environ['IPYTHONDIR'])")
    assert folders.status == "ok"
    found = [path for folder in book.value("list(_sky)") for path in Path(folder).rglob("*") if path.is_file()]
    assert any(".jsonl" in path.name for path in found)
    assert not [path for path in found if SECRET.encode() in path.read_bytes()]
    assert SECRET not in str(cell.outputs)
    assert SECRET not in "".join(cell.updates)


def test_a_hidden_answer_is_shown_as_dots(book: Notebook) -> None:
    book.run("%%sky --on 1\nimport getpass\nlen(getpass.getpass())", answers=[SECRET])
    assert book.value("_sky[0]") == len(SECRET)
    assert printed(book) == ["Password: ········\n"]


def test_an_interrupt_while_a_rank_asks_ends_the_cell_and_keeps_all_names(book: Notebook) -> None:
    def press() -> Iterator[None]:
        book.manager.interrupt_kernel()
        yield None

    cell = book.run("%%sky\nkept = rank\ninput('who? ') if rank else None", answers=press())
    assert (cell.status, cell.error_name) == ("error", "KeyboardInterrupt")
    assert book.run("%%sky --quiet\nkept * 2").status == "ok"
    assert book.value("list(_sky)") == [0, 2]


def test_where_nobody_can_answer_the_question_is_refused(book: Notebook) -> None:
    cell = book.run("%%sky\ninput('who? ')")
    assert (cell.status, cell.asked) == ("error", [])
    assert "input() does not work on a rank where nobody can answer" in cell.error
    assert book.run("%%sky --detach\ninput('who? ')", answers=[]).status == "ok"
    waited = book.run("%sky wait", answers=[])
    assert "input() does not work on a rank where nobody can answer" in waited.error
    assert not waited.asked


def test_a_detached_run_whose_code_asks_past_the_guard_meets_its_time_limit(book: Notebook) -> None:
    ask = "from sky_jupyter.node.shared import agent_channel\nagent_channel.of_rank().ask('input', {'prompt': ''})"
    assert book.run(f"%%sky --detach --on 0 --timeout 1\n{ask}\nimport time\ntime.sleep(3600)").status == "ok"
    waited = book.run("%sky wait", answers=[])
    assert (waited.status, waited.asked) == ("error", [])
    assert "--timeout" in waited.error


def test_a_thread_that_asks_when_its_cell_ends_is_refused(book: Notebook, tmp_path: Path) -> None:
    goes_on = tmp_path / "the cell may end"

    def leave() -> Iterator[None]:
        goes_on.touch()
        yield None

    code = f"""import os, threading, time
def late():
    try:
        input('late? ')
    except Exception as error:
        why.append(type(error).__name__)
why = []
thread = threading.Thread(target=late)
thread.start()
while not os.path.exists({str(goes_on)!r}): time.sleep(0.02)"""
    cell = book.run(f"%%sky --on 0\n{code}", answers=leave())
    assert (cell.status, cell.asked) == ("ok", [("rank 0 asks: late? ", False)])
    assert book.run("%%sky --on 0\nthread.join(60)\nwhy").status == "ok"
    assert book.value("_sky[0]") == ["NotOnRanks"]


# Debuggers.

FAILS = (
    "import gc, weakref\nclass Big: pass\ndef f(x):\n    big = Big()\n    f.ref = weakref.ref(big)\n    return 1 / x\n"
)


def test_a_breakpoint_in_a_cell_has_its_prompt_in_the_notebook(book: Notebook) -> None:
    code = "def double(x):\n    breakpoint()\n    y = 2 * x\n    return y\ndouble(rank)"
    cell = book.run(f"%%sky --on 1\n{code}", answers=["p x + 41", "n", "!y = 7", "c"])
    assert cell.status == "ok", cell.error
    assert [text for text, _ in cell.asked] == ["rank 1 asks: ipdb> "] * 4
    assert "ipdb> p x + 41\n42\n" in printed(book)[0]
    assert book.value("_sky[0]") == 7


def test_a_rank_is_debugged_after_its_failure(book: Notebook) -> None:
    failed = book.run(f"%%sky\n{FAILS}f(rank)")
    assert "ZeroDivisionError" in failed.error
    assert "`%debug 0` debugs it on the rank" in book.run("%debug", answers=[]).stream()
    for _ in range(2):
        cell = book.run("%sky debug 0", answers=["p x, type(big).__name__", "up", "p rank", "q"])
        assert cell.status == "ok", cell.error
        assert [text for text, _ in cell.asked] == ["rank 0 asks: ipdb> "] * 4
        assert "(0, 'Big')" in str(cell.outputs)
    assert "ZeroDivisionError" in book.value("repr(_sky.errors[0])")


def test_debug_with_a_rank_debugs_its_failure_and_is_else_ipythons_own(book: Notebook) -> None:
    assert book.run("%%sky\nfine = rank").status == "ok"
    assert "rank 1 has no failure to debug: no rank's last cell has failed" in book.run("%debug 1").stream("stderr")
    assert book.run(f"%%sky --on 1\n{FAILS}f(rank - 1)").status == "error"
    for line in ("%debug 1", "%debug rank 1"):
        cell = book.run(line, answers=["p x + 41", "q"])
        assert [text for text, _ in cell.asked] == ["rank 1 asks: ipdb> "] * 2
        assert "41" in cell.run.splitlines()
    none = book.run("%debug 0").stream("stderr")
    assert "rank 0 has no failure to debug: there is one on rank 1 of pool default" in none
    # Code, as IPython has it; and a failure of the notebook itself.
    assert "ipdb> " in book.run("%debug print(6 * 7)", answers=["c"]).asked[0][0]
    assert book.run("here = 1\nhere / 0").status == "error"
    assert book.run("%debug", answers=["q"]).asked[0][0] == "ipdb> "
    assert "While there is a pool" in str(book.run("%debug?").payload)


def test_debug_is_ipythons_own_again_without_the_extension(tmp_path: Path) -> None:
    looks = "print(get_ipython().find_line_magic('debug').__self__.__class__.__name__)"
    with notebook(tmp_path) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        assert opened.run("%%sky\n1").status == "ok"
        assert opened.run(looks).status == "error"
        assert opened.run("%unload_ext sky_jupyter").status == "ok"
        assert opened.run(looks).stream() == "ExecutionMagics\n"


def test_a_step_to_the_end_of_a_cell_leaves_nothing_in_later_debuggers(book: Notebook) -> None:
    stepped = book.run("%%sky --on 0\nbreakpoint()\nend = 1", answers=["n", "n", "c"])
    assert "--Return--" in stepped.run
    assert book.run(f"%%sky --on 0\n{FAILS}f(0)").status == "error"
    cell = book.run("%sky debug 0", answers=["w", "up", "q"])
    assert "<module>" in cell.run
    assert "None" not in cell.run.splitlines()
    assert "__return__" not in book.run("%sky names").stream()


def test_what_a_failure_kept_alive_is_free_when_the_next_cell_begins(book: Notebook) -> None:
    assert book.run(f"%%sky --on 0\n{FAILS}f(0)").status == "error"
    assert book.run("%sky debug 0", answers=["q"]).status == "ok"
    assert book.run("%%sky --on 0\ngc.collect()\nf.ref() is None").status == "ok"
    assert book.value("_sky[0]") is True
    nothing = book.run("%sky debug 0", answers=[])
    assert "there is nothing to debug on this rank" in nothing.error
    assert not nothing.asked


def test_an_interrupt_in_a_debugger_ends_the_cell(book: Notebook) -> None:
    def press() -> Iterator[None]:
        book.manager.interrupt_kernel()
        yield None

    cell = book.run("%%sky --on 1\nbreakpoint()\nrank", answers=press())
    assert (cell.status, cell.error_name) == ("error", "KeyboardInterrupt")
    assert len(cell.asked) == 1

    def went_on(cell: Cell) -> bool:
        return bool(cell.displays) and "went on" in cell.run

    # After `continue` an interrupt is one of the cell, and no debugger asks again.
    code = "import time\nbreakpoint()\nprint('went on', flush=True)\nwhile True: time.sleep(0.01)"
    cell = book.run(f"%%sky --on 1\n{code}", answers=["c"], until=went_on)
    assert (cell.status, cell.error_name, len(cell.asked)) == ("error", "KeyboardInterrupt", 1)
    assert book.run("%%sky --quiet\nrank").status == "ok"


def test_a_debugger_is_refused_where_nobody_can_type(book: Notebook) -> None:
    assert "breakpoint() does not work on a rank where nobody can answer" in book.run("%%sky\nbreakpoint()").error
    assert "the debugger's commands cannot be typed here" in book.run("%sky debug 0").error
    assert "debug takes a rank such as 1, not 'one'" in book.run("%sky debug one").stream("stderr")
    assert "ranks 0 to 1, not 2" in book.run("%sky debug 2", answers=[]).stream("stderr")
