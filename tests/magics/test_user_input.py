"""What code on ranks asks the user of a notebook: `input`, `getpass` and debuggers, in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.magics.notebook import Notebook, notebook

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
    def press() -> Iterator[str]:
        book.manager.interrupt_kernel()
        yield ""

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
