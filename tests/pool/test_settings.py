"""What is set in the process that made a pool, and is no value of a name: the ranks have it, once each."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.capture.collect import collect_value
from sky_jupyter.errors import CaptureError
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from tests.pool.pools import local_pool, run


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(2) as made:
        yield made


def stdout(pool: Pool, code: str, **options: object) -> list[str]:
    """What each rank prints."""
    result = run(pool, code, {}, **options)
    return [result.stdout(rank).strip() for rank in range(pool.spec.world_size)]


def notices(pool: Pool, code: str) -> list[str]:
    """What a person is told as a cell runs."""
    told: list[str] = []
    run(pool, code, {}, listener=lambda event: told.append(event.text) if isinstance(event, NoticeEvent) else None)
    return told


def test_variables_that_are_set_changed_and_deleted_are_so_on_the_ranks(pool, monkeypatch):
    show = "import os; print(os.environ.get('SOME_SWITCH'))"
    monkeypatch.setenv("SOME_SWITCH", "one")
    assert stdout(pool, show) == ["one", "one"]
    monkeypatch.setenv("SOME_SWITCH", "two")
    assert stdout(pool, show) == ["two", "two"]
    monkeypatch.delenv("SOME_SWITCH")
    assert stdout(pool, show) == ["None", "None"]


def test_what_a_cell_sets_on_the_ranks_stays_until_the_notebook_sets_it_anew(pool, monkeypatch):
    show = "import os; print(os.environ['WHOSE'])"
    monkeypatch.setenv("WHOSE", "the notebook's")
    run(pool, "import os; os.environ['WHOSE'] = 'the cell\\'s'", {})
    monkeypatch.setenv("ANOTHER", "1")
    assert stdout(pool, show) == ["the cell's", "the cell's"]
    monkeypatch.setenv("WHOSE", "the notebook's own")
    assert stdout(pool, show) == ["the notebook's own", "the notebook's own"]


def test_a_cell_that_is_sent_nothing_leaves_it_to_the_next(pool, monkeypatch):
    show = "import os; print(os.environ.get('LATER'))"
    monkeypatch.setenv("LATER", "1")
    assert stdout(pool, show, follow=False) == ["None", "None"]
    assert stdout(pool, show) == ["1", "1"]


def test_secrets_and_what_each_rank_has_of_its_own_stay_here_which_is_said_once(pool, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "hush")
    monkeypatch.setenv("DATABASE", "postgresql://me:hush@db/x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    show = "from os import environ as e; print(e.get('SOME_API_KEY'), 'DATABASE' in e, e.get('CUDA_VISIBLE_DEVICES'))"
    own, secret = notices(pool, show)
    assert own.startswith("CUDA_VISIBLE_DEVICES: set in the notebook, and each rank has its own")
    assert secret.startswith("DATABASE, SOME_API_KEY: set in the notebook, and not on the ranks")
    assert notices(pool, show) == []
    assert stdout(pool, show)[0].startswith("None False")
    assert "7" not in stdout(pool, show)[0]


def test_no_variable_is_kept_with_a_run(pool, monkeypatch):
    monkeypatch.setenv("SOME_SWITCH", "not-for-a-disk")
    assert stdout(pool, "import os; print(os.environ['SOME_SWITCH'][:3])") == ["not", "not"]
    kept = json.dumps([facts["begin"] for facts in pool.runs().values()])
    assert "SOME_SWITCH" in kept, "the cell is"
    assert "not-for-a-disk" not in kept


def test_a_module_that_is_not_loaded_there_has_the_notebooks_options_once_a_cell_imports_it(pool, monkeypatch):
    import numpy as np

    show = "import numpy as np; print(np.array([1 / 3]), np.geterr()['over'])"
    run(pool, "import sys; assert 'numpy' not in sys.modules", {})
    with np.printoptions(precision=2), np.errstate(over="raise"):
        assert stdout(pool, show) == ["[0.33] raise", "[0.33] raise"]
        # The import goes on as Python's own.
        assert stdout(pool, "print(np.__spec__.loader.__class__.__name__)") == ["SourceFileLoader"] * 2
    assert stdout(pool, show) == ["[0.33333333] warn", "[0.33333333] warn"]


def test_filters_of_warnings_and_levels_of_loggers_follow_with_handlers_that_write_to_a_standard_stream(pool):
    code = """
        import logging, warnings, sys
        warnings.warn("not to be seen")
        logging.getLogger("followed").info("to be seen")
        logging.getLogger("followed").debug("not to be seen")
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    logger, handler = logging.getLogger("followed"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s says %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="not to be")
            result = run(pool, code, {})
            assert [result.stderr(rank) for rank in (0, 1)] == ["followed says to be seen\n"] * 2
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    result = run(pool, code, {})
    assert "UserWarning: not to be seen" in result.stderr(0)
    assert "says" not in result.stderr(0)


def test_a_filter_that_the_notebook_adds_leaves_those_of_cells_in_their_place(pool):
    show = "import warnings\nwarnings.warn('common')"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="common")
        assert run(pool, show, {}).stderr(0) == ""
        run(pool, "warnings.filterwarnings('always', message='common')", {})
        warnings.filterwarnings("ignore", message="other")
        assert "UserWarning: common" in run(pool, show, {}).stderr(0)
    run(pool, "warnings.resetwarnings()", {})


def test_what_is_no_text_is_no_hindrance(pool, monkeypatch):
    monkeypatch.setenv("NO_TEXT", os.fsdecode(b"\xff\xfe"))
    assert stdout(pool, "import os; print(os.fsencode(os.environ['NO_TEXT']))") == [r"b'\xff\xfe'"] * 2


def test_a_handler_that_cannot_follow_is_named(pool, tmp_path: Path):
    logger, handler = logging.getLogger("filed"), logging.FileHandler(tmp_path / "log")
    logger.addHandler(handler)
    try:
        (told,) = notices(pool, "1")
        assert "`the handler logging.FileHandler of logger 'filed'`" in told
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_a_new_kernel_has_all_that_is_set(pool, monkeypatch):
    monkeypatch.setenv("SOME_SWITCH", "before")
    show = "import os; print(os.environ.get('SOME_SWITCH'))"
    assert stdout(pool, show) == ["before", "before"]
    pool.restart()
    pool.take_restarted()
    assert stdout(pool, show) == ["before", "before"]


def test_calls_of_functions_see_it_whichever_thread_makes_them(pool, monkeypatch):
    monkeypatch.setenv("SOME_SWITCH", "for calls")

    def look() -> str | None:
        return os.environ.get("SOME_SWITCH")

    blob, capture = collect_value((look, (), {}), {}, pool.ledger)
    assert pool.attend(pool.submission.begin_call(blob, capture)).values == ["for calls", "for calls"]
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(pool.submit(look).result()))
    thread.start()
    thread.join()
    assert seen == ["for calls"]


def test_what_cannot_be_looked_at_keeps_no_cell_from_running(pool, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    try:
        assert stdout(pool, "print(1)") == ["1", "1"]
    except CaptureError as error:
        pytest.fail(str(error))
