"""``%%sky`` and ``%sky`` in a real kernel, as the user of a notebook meets them.

All tests share a kernel; each asks for the pool that it needs, so that they run in any order.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.bootstrap.wheels import make_wheel
from tests.conftest import MARK, marked_processes
from tests.magics.notebook import Cell, Notebook, OwnKernelSpecs, notebook

RANK = "import sky_jupyter; rank = sky_jupyter.instance_info().rank"


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("book")
    with notebook(folder) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        yield opened
    end = time.monotonic() + 60
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end, "the notebook's pools outlive it"
        time.sleep(0.05)


@pytest.fixture
def two(book) -> Notebook:
    """The notebook with a current pool of two nodes whose ranks know their number."""
    up = book.run("%sky up --name default --nodes 2")
    assert up.status == "ok", up.outputs
    assert book.run(f"%%sky --quiet\n{RANK}").status == "ok"
    return book


def told(cell: Cell) -> str:
    """What `%sky` says of the pools."""
    return cell.run if cell.displays else cell.stream()


def pools_of(book: Notebook) -> list[str]:
    return re.findall(r"^pool ([\w-]+)", told(book.run("%sky")), re.MULTILINE)


# The flow.


def test_the_first_cell_makes_the_pool_and_later_ones_use_it(book):
    book.run("%sky down --all")
    first = book.run("%%sky --nodes 2\nimport os\nprint('hello')\nos.getpid()")
    start, _ = first.displays
    assert re.fullmatch(r"pool default · 2 local nodes ready · [\d.]+ s( \(.*\))?", start.data["text/plain"])
    assert re.match(r"sky · 2 ranks · [\d.]+ s · done\n\[0-1\] hello\n\[0\] Out: \d+\n\[1\] Out: \d+\Z", first.run)
    pids = book.value("_sky.values")
    assert len(set(pids)) == 2
    for line in ("%%sky", "%%sky --nodes 2", "%%sky --nodes 2 --provider local"):
        again = book.run(f"{line}\nos.getpid()")
        assert len(again.displays) == 1
        assert book.value("_sky.values") == pids


def test_what_a_cell_assigns_stays_on_the_nodes_and_the_last_writer_wins(two):
    two.run("%%sky\nkept = rank + 10")
    assert two.run("%%sky\nkept").body == ["[0] Out: 10", "[1] Out: 11"]
    two.run("kept = 5")
    assert two.run("%%sky\nkept").body == ["[0-1] Out: 5"]
    assert two.run("kept").outputs[0].data["text/plain"] == "5"


def test_functions_of_the_notebook_show_their_source_on_the_ranks_as_they_do_here(two):
    made = two.run(
        "import functools, inspect\n\ndef misses(x):\n    raise LookupError(x)  # as it stands here\n\n"
        "class Finder:\n    def find(self):\n        misses(1)\n\ndef plainly():\n    return 1"
    )
    for call in ("%%sky\nFinder().find()", "import sky_jupyter as sky\nsky.function(Finder().find)() @ sky"):
        error = two.run(call).error
        assert f"Cell In[{made.number}], line 4, in misses(x)" in error, error
        # IPython 8, the last one for Python 3.10, leaves the comment out of the line that has failed.
        comment = "  # as it stands here" if sys.version_info >= (3, 11) else ""
        assert f"----> 4     raise LookupError(x){comment}" in error
        assert f"Cell In[{made.number}], line 8" in error
    assert two.run("%%sky\ninspect.getsource(plainly)").body == [r"[0-1] Out: 'def plainly():\n    return 1\n'"]


def test_options_of_libraries_that_the_notebook_sets_are_set_on_the_ranks(two):
    two.run("import numpy as np, pandas as pd, matplotlib.pyplot as plt")
    two.run("np.set_printoptions(precision=3); pd.set_option('display.max_rows', 7); plt.rcParams['figure.dpi'] = 155")
    show = "%%sky\nprint(np.array([1 / 3]), pd.get_option('display.max_rows'), plt.rcParams['figure.dpi'])"
    assert two.run(show).body == ["[0-1] [0.333] 7 155.0"]
    two.run("%%sky\nplt.rcParams['figure.dpi'] = 60")
    assert two.run(show).body == ["[0-1] [0.333] 7 60.0"]
    two.run("np.set_printoptions(precision=8); pd.reset_option('display.max_rows'); plt.rcParams['figure.dpi'] = 100")
    assert two.run(show).body == ["[0-1] [0.33333333] 60 100.0"]


def test_what_a_cell_of_the_notebook_does_to_a_module_is_named_once_where_the_module_is_used(two):
    two.run("import colorsys, random\ncolorsys.EXTRA = 77\nrandom.seed(3)")
    assert two.run("%%sky\n1").body == ["[0-1] Out: 1"]
    told = two.run("%%sky\nhasattr(colorsys, 'EXTRA')").body
    assert told == [
        "[0-1] Out: False",
        "set in the notebook, and not on the ranks: `colorsys.EXTRA = 77`; the same line in a %%sky cell sets it there",
    ]
    assert two.run("%%sky\nrandom.seed(3)\nrandom.randint(0, 9) == 3").body == ["[0-1] Out: True"]
    assert two.run("%%sky\nhasattr(colorsys, 'EXTRA')").body == ["[0-1] Out: False"]


def test_another_spec_on_a_live_name_says_what_differs_and_starts_nothing(two):
    for line in ("--nodes 3", "--nodes 3 --name default"):
        cell = two.run(f"%%sky {line}\n1")
        assert cell.error_name == "PoolError"
        assert "nodes: 2 -> 3" in cell.error
        assert "%sky restart --name default" in cell.error
        assert "Traceback" not in cell.error
        assert not cell.displays
    assert "variables: A" in two.run("%%sky --env A=1\n1").error
    told = two.run("%%sky --nodes 3 --python 3.13\n1").error
    assert "python: the notebook's -> 3.13" in told
    assert "`%sky restart --name default --nodes 3 --python 3.13`; its names are lost" in told
    assert "`%sky resize 3 --name default`" in told
    assert "resize" not in two.run("%%sky --accelerator A100\n1").error
    assert pools_of(two) == ["default"]


def test_packages_are_installed_for_a_live_pool_that_runs_in_the_notebooks_own_environment(book, tmp_path):
    make_wheel(tmp_path, "sky_extra", "1.5")
    book.run(f"import os; os.environ.update(UV_NO_INDEX='1', UV_FIND_LINKS={str(tmp_path)!r})")
    assert book.run("%sky up --name more --nodes 2").status == "ok"
    try:
        book.run("%%sky\nkept_name = 3")
        failed = book.run("%%sky --pip sky-absent\n1")
        assert failed.error_name == "BootstrapError"
        assert "sky-absent" in failed.error
        cell = book.run("%%sky --nodes 2 --pip sky-extra\nimport sky_extra\nsky_extra.VERSION, kept_name")
        assert (cell.stream(), cell.body) == ("installed on the nodes: sky-extra==1.5\n", ["[0-1] Out: ('1.5', 3)"])
        again = book.run("%%sky --pip sky-extra\nsky_extra.VERSION")
        assert (again.stream(), again.body) == ("", ["[0-1] Out: '1.5'"])
        assert book.run("import sky_extra").error_name == "ModuleNotFoundError"
        both = book.run("%%sky --pip sky-other --env A=1\n1").error
        assert "packages: sky-extra -> sky-other" in both
        assert "`%%sky --name more --pip sky-other`" in both
    finally:
        book.run("%sky down more")
        book.run("del os.environ['UV_NO_INDEX'], os.environ['UV_FIND_LINKS']")


def test_a_name_alone_makes_no_pool(two):
    refused = two.run("%%sky --name defalt\n1").error
    assert refused == (
        "PoolError: no pool 'defalt' here; did you mean 'default'? (`%%sky --nodes N --name defalt` makes one)"
    )
    assert "no pool 'xyz' here; live: default. (" in two.run("%%sky --name xyz\n1").error
    assert pools_of(two) == ["default"]
    assert two.run("%%sky\n1").run.startswith("sky · 2 ranks")


def test_ranks_that_a_pool_would_not_have_are_refused_before_it_is_made(book):
    book.run("%sky down --all")
    cell = book.run("%%sky --on 5 --nodes 2\n1")
    assert "would have ranks 0 to 1, not 5: `%%sky --nodes 6` makes it larger" in cell.stream("stderr")
    assert pools_of(book) == []


def test_logs_of_a_rank_that_the_run_was_not_on_are_refused(two, tmp_path):
    two.run("%%sky --on 1\nprint('here')")
    assert two.run("%sky logs --rank 1").stream() == "here\n"
    for line in ("%sky logs --rank 0-1", f"%sky logs --rank 0,9 --to {tmp_path}/logs"):
        refused = two.run(line)
        assert refused.status == "error"
        said = refused.stream("stderr")
        assert re.search(r"run \w+ was not on ranks? 0(, 9)?; it was on rank 1", said), said
    assert not list(tmp_path.iterdir())


def test_an_interrupt_of_wait_lets_the_run_go_on(two, tmp_path):
    go = tmp_path / "go"
    two.run(
        f"%%sky --detach --out later\nimport os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n'kept'"
    )
    for source in ("%sky wait", "%sky wait", "%%sky\n'not run'"):
        stopped = two.run(source, until=lambda cell: begun(cell) or "waiting" in cell.stream())
        assert stopped.error_name == "KeyboardInterrupt"
        assert "continues; `%sky wait` shows it again, `%sky interrupt` stops it" in stopped.error
        if source == "%sky wait":
            header = stopped.run.splitlines()[0]
            assert header.endswith("· goes on"), stopped.run
            assert " 0.0 s " not in header
    go.touch()
    assert two.run("%sky wait").body == ["[0-1] begun", "[0-1] Out: 'kept'"]
    assert two.value("list(later)") == ["kept", "kept"]
    two.run("%%sky --detach\nimport time\ntime.sleep(600)")
    assert two.run("%sky interrupt").stream() == "pool default: every rank that works is interrupted\n"
    assert two.run("%sky wait").error_name in ("CellError", "KeyboardInterrupt")


def test_runs_are_told_by_what_their_cells_do(two):
    two.run("%sky up --nodes 1 --name ended")
    done = two.run("%%sky --name ended\nimport os\nfrom os import (\n    path,\n)\nos.getpid()")
    two.run("%sky down ended")
    stopped = two.run("%%sky\nimport time\nprint('begun', flush=True)\ntime.sleep(600)", until=begun)
    lines = two.run("%sky runs").stream().splitlines()
    now = r"\d\d \w+ \d\d:\d\d:\d\d +[\d.]+ s"
    interrupted = rf"\w{{8}}  default +interrupted +{now}  In\[{stopped.number}\] +print\('begun', flush=True\)"
    assert re.fullmatch(interrupted, lines[0]), lines
    assert re.fullmatch(rf"\w{{8}}  ended +ok +{now}  In\[{done.number}\] +os.getpid\(\)", lines[1]), lines


def begun(cell: Cell) -> bool:
    return bool(cell.displays) and "[0-1] begun" in cell.run


def test_several_pools_live_side_by_side_and_are_told_apart_by_name(two):
    other = two.run("%%sky --name other --env WHO=other\nimport os\nos.environ['WHO']")
    assert other.displays[0].data["text/plain"].startswith("pool other · 1 local node ready")
    assert other.run.startswith("sky · other · 1 rank · ")
    assert other.body == ["Out: 'other'"]
    assert sorted(pools_of(two)) == ["default", "other"]
    # The one used last is the current one.
    assert two.run("%%sky\n1").run.startswith("sky · other · ")
    assert two.run("%%sky --name default\n1").run.startswith("sky · 2 ranks")
    assert two.run("%%sky\n1").run.startswith("sky · 2 ranks")
    assert two.run("%sky down --name other").stream().endswith("pool other: ended\n")
    assert pools_of(two) == ["default"]


def test_names_of_the_notebook_stand_in_the_line_as_in_ipythons_own_magics(two):
    two.run("last, name = -1, 'taken'")
    cell = two.run("%%sky --nodes {1 - last} --on $last --out {name}\nrank")
    assert cell.run.endswith("Out: 1")
    assert two.value("taken.values") == [1]
    assert "'{nowhere}'" in two.run("%%sky --nodes {nowhere}\nrank").stream("stderr")


def test_options_come_from_a_file_too(two):
    config = Path(two.value("__import__('os').getcwd()"), "pools.toml")
    config.write_text("[one]\nname = 'filed'\nnodes = 1\nenv = { COLOUR = 'green' }\nout = 'found'\n")
    two.run("%%sky --config pools.toml#one\nimport os\nos.environ['COLOUR']")
    assert two.value("found.values") == ["green"]
    two.run("%sky down --name filed")
    config.write_text("nodez = 1")
    assert "unknown option 'nodez'" in two.run("%%sky --config pools.toml\n1").stream("stderr")


def test_modules_beside_the_notebook_follow_their_changes(two):
    folder = Path(two.value("__import__('os').getcwd()"))
    (folder / "beside.py").write_text("def name():\n    return 'first'\n")
    (folder / "words.txt").write_text("words")
    two.run("import beside\nfrom beside import name")
    assert two.run("%%sky\nbeside.name(), name()").body == ["[0-1] Out: ('first', 'first')"]
    (folder / "beside.py").write_text("def name():\n    return 'other'\n")
    cell = two.run(
        "%%sky --include words.txt\nimport sky_jupyter as sky\nname(), sky.included('words.txt').read_text()"
    )
    assert "beside.py changed: sent again and reloaded on the nodes" in cell.run
    assert "[0-1] Out: ('other', 'words')" in cell.body
    for line in ("%%sky --include absent.txt\n1", "%%sky --include ~/absent.txt\n1"):
        assert "absent.txt is not there" in two.run(line).stream("stderr")


# The cell's options.


def test_on_chooses_the_ranks(two):
    assert two.run("%%sky --on 1\nrank").run.endswith("Out: 1")
    assert two.value("_sky.ranks") == (1,)
    assert two.run("%%sky --on head\nrank").run.endswith("Out: 0")
    assert "pool 'default' has ranks 0 to 1, not 2" in two.run("%%sky --on 2\nrank").stream("stderr")


def test_only_chooses_whose_output_is_shown(two):
    cell = two.run("%%sky --only 1\nprint('from', rank)\nrank")
    assert cell.body == ["from 1", "Out: 1"]
    assert "sky · 2 ranks, output of rank 1 · " in cell.run
    assert two.value("_sky.values") == [0, 1]
    assert two.value("_sky.stdout(0)") == "from 0\n"
    cell = two.run("%%sky --only 1 --grace 0.1\nif rank == 0: raise ValueError('not shown')")
    assert "sky · 2 ranks, output of rank 1 · " in cell.run
    assert cell.run.endswith("rank 0 failed")


def test_results_are_kept_under_sky_and_the_given_name(two):
    two.run("%%sky --out answer\nprint('x')\nrank * 2")
    assert two.value("(answer.values, answer.head, len(answer), answer[1], answer is _sky)") == ([0, 2], 0, 2, 2, True)
    assert two.value("answer.elapsed") > 0


def test_quiet_shows_nothing_but_errors(two):
    cell = two.run("%%sky --quiet\nprint('x')\nrank")
    assert cell.outputs == []
    assert two.value("_sky.values") == [0, 1]
    assert two.run("%%sky --quiet\n1/0").error_name == "CellError"


def test_a_cell_that_takes_too_long_is_stopped(two):
    cell = two.run("%%sky --timeout 0.3\nimport time\ntime.sleep(600)")
    assert "the run took longer than 0.3 s (--timeout)" in cell.error
    assert cell.run.endswith("· timed out")
    assert two.run("%sky runs").stream().split()[2:4] == ["timed", "out"]
    assert two.run("%%sky\nrank").body == ["[0] Out: 0", "[1] Out: 1"]


def test_ranks_that_wait_for_a_failed_one_get_their_grace(two):
    cell = two.run("%%sky --grace 0.3\nimport time\nif rank == 1: raise ValueError('bad shape')\ntime.sleep(600)")
    assert cell.run.endswith("rank 1 failed · rank 0 interrupted")
    assert "ValueError: bad shape" in cell.error
    assert "rank 1 had failed, and it did not end within 0.3 s (--grace)" in cell.error
    assert two.run("%%sky\nrank").status == "ok"


def test_names_are_pushed_and_left_out_as_asked(two):
    two.run("secret = 42")
    assert "NameError: name 'secret' is not defined" in two.run("%%sky --no-capture secret\nsecret").error
    assert two.run("%%sky --push secret\neval('secret')").body == ["[0-1] Out: 42"]


# The last writer wins.


@pytest.mark.slow
def test_a_model_and_its_optimizer_train_together_on_the_nodes_whenever_each_is_sent(two):
    pytest.importorskip("torch")
    two.run(
        "import torch\nimport sky_jupyter as sky\n"
        "model = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "@sky.function\ndef step():\n    w = model.weight.item()\n    model(torch.ones(1, 1)).sum().backward()\n"
        "    opt.step()\n    return model.weight.item() != w, opt.param_groups[0]['params'][0] is model.weight"
    )
    assert two.run("step() @ sky").outputs[-1].data["text/plain"] == "[(True, True), (True, True)]"
    assert two.run("step() >> sky").outputs[-1].data["text/plain"] == "(True, True)"
    two.run("sched = torch.optim.lr_scheduler.StepLR(opt, 1)")
    told = "sched.optimizer is opt, opt.param_groups[0]['params'][0] is model.weight"
    assert two.run(f"%%sky\nopt.step(); sched.step()\n{told}").body[-1] == "[0-1] Out: (True, True)"
    two.run("model.weight.data += 1")
    assert two.run(f"%%sky\nmodel\n{told}").body == ["[0-1] Out: (True, True)"]
    two.run("x = [0]; y = [x]")
    two.run("%%sky\nx = x + [1]")
    assert "y and x share an object in the notebook, and do not on the nodes" in two.run("%%sky\ny").run


def test_changes_in_place_in_the_notebook_are_seen_and_those_on_the_nodes_are_kept_until_then(two):
    pytest.importorskip("pandas")
    two.run(
        "import numpy as np, pandas as pd\n"
        "l, d, a, f = [1], {'k': [1]}, np.zeros(10_000), pd.DataFrame({'c': [1.0, 2.0]})"
    )
    show = "%%sky\nl, d, float(a.sum()), float(f['c'].sum())"
    assert two.run(show).status == "ok"
    assert two.value("_sky.values") == [([1], {"k": [1]}, 0.0, 3.0)] * 2
    two.run("%%sky\nl.append(9); d['n'] = 9; a[0] = 9; f.loc[0, 'c'] = 9.0")
    two.run(show)
    assert two.value("_sky.values") == [([1, 9], {"k": [1], "n": 9}, 9.0, 11.0)] * 2
    two.run("l.append(2); d['k'].append(2); a[-1] = 2; f.loc[1, 'c'] = 3.0")
    two.run(show)
    assert two.value("_sky.values") == [([1, 2], {"k": [1, 2]}, 2.0, 4.0)] * 2


def test_what_is_deleted_on_a_side_is_gone_there_alone(two):
    two.run("kept, dropped = 1, 2")
    two.run("%%sky\nkept, dropped")
    two.run("%%sky\ndel dropped")
    assert "NameError: name 'dropped'" in two.run("%%sky\ndropped").error
    assert two.run("dropped").outputs[0].data["text/plain"] == "2"
    two.run("del kept")
    assert two.run("%%sky\nkept").body == ["[0-1] Out: 1"]
    two.run("dropped = 2")
    assert two.run("%%sky\ndropped").body == ["[0-1] Out: 2"]


def test_a_cell_that_fails_half_way_has_written_what_it_had_written(two):
    two.run("early, late = 'notebook', 'notebook'")
    two.run("%%sky\nearly = 'nodes'\n1/0\nlate = 'nodes'")
    assert two.run("%%sky\nearly, late").body == ["[0-1] Out: ('nodes', 'notebook')"]
    two.run("early = 'again'\n1/0")
    two.run("try:\n    1/0\n    late = 'again'\nexcept ZeroDivisionError: pass")
    assert two.run("%%sky\nearly, late").body == ["[0-1] Out: ('again', 'notebook')"]


def test_a_rank_that_did_not_assign_a_name_has_the_notebooks(two):
    two.run("own = 'notebook'")
    two.run("%%sky --on 1\nown = 'rank 1'")
    assert two.run("%%sky\nown").body == ["[0] Out: 'notebook'", "[1] Out: 'rank 1'"]
    two.run("%%sky\nif rank == 0: branch = 'rank 0'")
    assert "NameError" in two.run("%%sky\nbranch").error
    two.run("branch = 'notebook'")
    assert two.run("%%sky\nbranch").body == ["[0-1] Out: 'notebook'"]


def test_what_was_made_on_the_nodes_sees_what_the_notebook_assigns_later(two):
    two.run(
        "import functools\nfactor, offset = 2, 10\n"
        "def make():\n    def inner(x):\n        return x * factor\n    return inner\n"
        "class Shift:\n    def by(self, x):\n        return x + offset"
    )
    two.run("%%sky\ntimes, shift = make(), Shift()\npart = functools.partial(times, 4)")
    assert two.run("%%sky\ntimes(3), shift.by(1), part()").body == ["[0-1] Out: (6, 11, 8)"]
    two.run("factor, offset = 5, 20")
    assert two.run("%%sky\nshift.by(1), part()").body == ["[0-1] Out: (21, 20)"]


def test_what_a_called_function_assigns_counts_as_the_nodes(two):
    two.run("counted = 'notebook'\nimport sky_jupyter as sky\nfrom sky_jupyter.pool.open_pools import pools")
    two.run("@sky.function\ndef count():\n    global counted\n    counted = ['nodes']\n    return 1")
    assert two.run("count() @ pools.current").outputs[-1].data["text/plain"] == "[1, 1]"
    assert two.run("%%sky\ncounted").body == ["[0-1] Out: ['nodes']"]
    two.run("counted = ['notebook']")
    two.run("count() >> pools.current")
    assert two.run("%%sky --quiet\ncounted").status == "ok"
    assert sorted(two.value("_sky.values")) == [["nodes"], ["notebook"]]


@pytest.mark.slow
def test_names_lists_where_each_value_comes_from(two):
    two.run("%sky restart")
    assert "no name of yours yet" in two.run("%sky names").stream()
    two.run("import numpy as np, json as js\ndata, other = np.zeros(1_000_000), [1]")
    two.run(f"%%sky\n{RANK}\nimport math\nmade = data[:1000] * 2\njs, other, len(data)")
    two.run("%%sky --on 1\nalone = 'x'")
    two.run("%%sky\nbrief = 1\ndel brief\ndel other")
    two.run("data = np.ones(1_000_000)")
    lines = two.run("%sky names").stream().splitlines()
    now = r"\d\d:\d\d:\d\d"
    wanted = [
        r"name +type +value +shape +dtype +size +value from +when",
        rf"alone +str +'x' +1 character +\d+ bytes +rank 1 +{now}",
        rf"data +ndarray +1000000 +float64 +8 MB +the notebook +{now}"
        r" +the notebook has another now, which is sent when a cell reads it",
        rf"js +module +import +{now}",
        rf"made +ndarray +1000 +float64 +8 kB +the nodes +{now}",
        rf"math +module +import on the nodes +{now}",
        rf"other +the nodes +{now} +deleted there",
        rf"rank +int +0 to 1 on 2 ranks +\d+ bytes +the nodes +{now}",
        rf"sky_jupyter +module +import on the nodes +{now}",
    ]
    size = r"\d[\d.]* (bytes|kB|MB|GB)"
    wanted.append(rf"kept on a machine: {size}, of which no name holds {size}; at most {size} of that \(--blob-limit\)")
    for line, form in zip(lines, wanted, strict=True):
        assert re.fullmatch(form, line), (line, lines)
    two.run("%%sky\nlen(data)")
    data = next(line for line in two.run("%sky names").stream().splitlines() if line.startswith("data"))
    assert re.fullmatch(rf"data +ndarray +1000000 +float64 +8 MB +the notebook +{now}", data)
    # A second import of the same module assigns no other object; a value does.
    two.run("%%sky\nimport math, sky_jupyter\nmath = 3")
    listed = two.run("%sky names").stream()
    assert re.search(rf"^math +int +3 +\d+ bytes +the nodes +{now}$", listed, re.MULTILINE), listed
    assert re.search(rf"^sky_jupyter +module +import on the nodes +{now}$", listed, re.MULTILINE), listed
    two.run("del data")
    assert data in two.run("%sky names").stream().splitlines()


def test_each_rank_has_its_part_of_what_is_sharded(two):
    two.run("import numpy as np\nx, y, short = np.arange(600_000.0), list(range(600_000)), [1]")
    cell = two.run("%%sky --shard x,y\nlen(x), float(x[1]), y[:2]")
    assert cell.body == ["[0] Out: (300000, 2.0, [0, 2])", "[1] Out: (300000, 3.0, [1, 3])"]
    (line,) = [line for line in two.run("%sky names").stream().splitlines() if line.startswith("x ")]
    now = r"\d\d:\d\d:\d\d"
    aside = "sent whole when a cell reads it without --shard"
    assert re.fullmatch(rf"x +ndarray +300000 +float64 +2.4 MB +the notebook, 1/2 on each rank +{now} +{aside}", line)
    assert two.run("%%sky\nlen(x), len(y)").body == ["[0-1] Out: (600000, 600000)"]
    refused = two.run("%%sky --shard x,short\n1")
    assert "--shard x,short: shard takes the same index set for all arrays" in refused.error
    near = two.run("%%sky --shard shor\n1").error
    assert "'shor' cannot be sharded: the notebook has no such name; did you mean 'short'?" in near
    # One rank gets its part of the whole pool's, and an odd number is told.
    cell = two.run("y.append(0)\nget_ipython().run_cell_magic('sky', '--shard y --on 1', 'len(y)')")
    assert "--shard y gives 1 of 2 ranks 300001 items and the others 300000" in cell.run
    assert cell.body[0] == "Out: 300000"


def test_a_variable_of_the_nodes_is_pulled_and_they_keep_their_own(two):
    two.run("%%sky --quiet\nimport numpy\nlosses = numpy.full(3, rank)\nloader = (item for item in 'a')")
    assert two.run("%sky pull losses").stream() == "losses: list of 2 from ranks 0-1\n"
    assert two.value("[part.tolist() for part in losses]") == [[0, 0, 0], [1, 1, 1]]
    assert two.run("%sky pull losses --stack --as all_losses").stream() == "all_losses: ndarray 2x3 from ranks 0-1\n"
    assert two.run("%sky pull losses --on 1").stream() == "losses: ndarray 3 from rank 1\n"
    assert "value from" in two.run("%sky names").stream()
    assert "[0, 0, 0]" in two.run("%%sky\nlosses.tolist()").run
    two.run("losses[0] = 7")
    two.run("%%sky --quiet\nlosses.tolist()")
    assert two.value("list(_sky)") == [[7, 1, 1]] * 2
    assert two.complete("%sky pull los") == ["%sky pull losses"]
    assert "did you mean 'losses'?" in two.run("%sky pull loses").stream("stderr")
    assert "loader: generator cannot be pickled" in two.run("%sky pull loader").error


def test_what_cannot_be_sent_back_is_shown_with_the_reason(two):
    assert two.run("%%sky --quiet\n(item for item in 'a')").status == "ok"
    shown = two.run("_sky[1]").outputs[-1]["data"]["text/plain"].splitlines()
    assert shown[0].startswith("<generator object <genexpr> at 0x")
    assert shown[1].startswith("(it stayed on rank 1: value: generator cannot be pickled (")


def test_new_kernels_have_what_the_notebook_has_and_the_rest_is_told(two):
    two.run("both, sent = 'notebook', 'notebook'")
    two.run("%%sky\nonly, both, sent = 'nodes', 'nodes', sent")
    two.run("%%sky\nimport os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    cell = two.run(f"%%sky\n{RANK}\nboth, sent")
    assert cell.body == ["[0] Out: ('nodes', 'notebook')", "[1] Out: ('notebook', 'notebook')"]
    text = two.run("%sky restart").stream()
    assert re.search("lost, as only the nodes had them: .*only", text)
    assert re.search("back to what the notebook has: .*both", text)
    assert two.run("%%sky\nboth, sent").body == ["[0-1] Out: ('notebook', 'notebook')"]
    assert "NameError" in two.run("%%sky\nonly").error


# What is shown.


def goes_on(go: Path, words: str) -> Callable[[Cell], bool]:
    """Let a cell go on that waits for the file, once its view has shown the words; for `run(until=...)`."""

    def seen(cell: Cell) -> bool:
        if cell.displays and re.search(words, cell.run):
            go.touch()
        return False

    return seen


def test_lines_are_shown_while_the_cell_runs_in_one_output(two, tmp_path):
    go = tmp_path / "go"
    cell = two.run(
        "%%sky\nimport os, time\nfor step in range(4):\n    print(rank, step, flush=True)\n"
        f"    while step == 2 and not os.path.exists({str(go)!r}): time.sleep(0.05)",
        until=goes_on(go, r"\[1\] 1 0"),
    )
    assert len(cell.outputs) == 1
    early = [text for text in cell.updates if "[1] 1 0" in text and "[1] 1 3" not in text]
    assert early
    assert all("running" in text for text in early)
    assert "[0] 0 3\n[1] 1 0" in cell.run


def test_what_ranks_have_in_common_is_shown_once(two):
    cell = two.run("%%sky\nprint('same')\nprint('own', rank)\nprint('end')\n'value'")
    assert cell.body == ["[0-1] same", "[0] own 0", "[1] own 1", "[0-1] end", "[0-1] Out: 'value'"]
    assert cell.html.count("same") == cell.html.count("end<") == 1
    assert "ranks 0-1" in cell.html


def test_a_progress_bar_stays_on_its_line(two, tmp_path):
    pytest.importorskip("tqdm")
    go = tmp_path / "go"
    cell = two.run(
        "%%sky\nimport os, time\nfrom tqdm import tqdm\n"
        "for i in tqdm(range(10), bar_format='{n_fmt}/{total_fmt}', mininterval=0):\n"
        f"    while i == 5 and not os.path.exists({str(go)!r}): time.sleep(0.05)\nprint('after')",
        until=goes_on(go, r"\] [1-9]/10"),
    )
    assert [line for line in cell.body if line.strip("[]01- ")] == ["[0-1] 10/10", "[0-1] after"]
    assert any(re.search(r"\] [1-9]/10", text) for text in cell.updates)
    assert "\r" not in cell.html


def test_plots_and_tables_are_shown_as_themselves(two):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    cell = two.run(
        "%%sky\nimport matplotlib.pyplot as plt\nimport pandas as pd\nprint('before')\nplt.plot([1, 2])\nplt.show()\n"
        "pd.DataFrame({'loss': [0.5, 0.25]})",
        timeout=120,
    )
    assert cell.html.count("data:image/png;base64,") == 1
    assert cell.html.count("<table") == 1
    assert cell.html.index("before") < cell.html.index("data:image") < cell.html.index("<table")
    assert "[0-1] Out:    loss" in cell.run


def test_shell_lines_and_magics_run_on_the_nodes(two):
    cell = two.run("%%sky --on 0\n!echo from $SHELL_WORD the shell\n%env SHELL_WORD=x")
    assert cell.body[0] == "from the shell"
    timed = two.run("%%sky --on 0\n%%time\nprint('timed')")
    assert timed.body[0] == "timed"
    assert "Wall time" in timed.run


def test_the_saved_outputs_name_nothing_of_this_machine(two):
    two.run("%sky restart")
    cell = two.run(f"%%sky\n{RANK}\nprint('hello')\n1")
    failed = two.run("%%sky\ndef f():\n    1/0\nf()")
    text = str([*cell.outputs, *failed.outputs])
    for word in (os.path.expanduser("~"), str(Path(__file__).parents[2]), "site-packages", "/tmp/", "/dev/shm"):
        assert word not in text
    forms = {"application/vnd.sky.run.v1+json", "text/html", "text/plain"}
    assert all(set(output.data) == forms for output in cell.outputs)
    assert "widget" not in text


# Errors.


def test_a_failure_of_all_ranks_is_shown_once_with_the_cells_own_lines(two):
    cell = two.run("%%sky\nx = 1\n\ndef f(n):\n    return n / 0\n\nf(x)")
    assert [output.output_type for output in cell.outputs] == ["display_data", "error"]
    assert cell.error_name == "CellError"
    assert cell.error.count("ZeroDivisionError: division by zero") == 1
    assert "the cell failed on all 2 ranks" in cell.error
    assert re.search(r"── ranks 0-1 ─+\n", cell.error)
    assert f"Cell In[{cell.number}], line 7" in cell.error
    assert f"Cell In[{cell.number}], line 5, in f(n)" in cell.error
    assert "----> 5     return n / 0" in cell.error
    assert "sky_jupyter" not in cell.error
    assert cell.status == "error"
    assert cell.run.endswith("· failed")


def test_different_failures_are_shown_apart(two):
    cell = two.run("%%sky\nif rank:\n    raise KeyError('one')\nraise ValueError('zero')")
    assert re.search(r"── rank 0 ─+\n.*ValueError: zero.*── rank 1 ─+\n.*KeyError: 'one'", cell.error, re.DOTALL)
    assert two.value("[type(error).__name__ for error in _sky.errors.values()]") == ["ValueError", "KeyError"]


def test_debug_says_that_the_error_is_on_ranks(two):
    two.run("1/0")
    two.run("%%sky\nif rank == 1: raise RuntimeError('boom')")
    assert "the error is on rank 1, whose frames cannot be debugged from here" in two.run("%debug").stream()


def test_a_name_that_only_the_nodes_have_is_told_with_the_way_here(two):
    two.run("%%sky\nonly_there = rank")
    cell = two.run("only_there + 1")
    assert cell.error_name == "NameError"
    assert "only_there is on the nodes: `%sky pull only_there`" in cell.stream("stderr")
    assert "on the nodes" not in two.run("nowhere_at_all").stream("stderr")


def test_the_other_ranks_results_are_kept(two):
    cell = two.run("%%sky --out partial\nif rank:\n    raise KeyError('one')\nrank")
    assert "the cell failed on rank 1 of 2" in cell.error
    assert cell.body == ["[0] Out: 0"]
    assert two.value("(partial.values, list(partial.errors))") == ([0], [1])


def test_a_failure_is_catchable_by_its_own_type(two):
    cell = two.run(
        "try:\n    get_ipython().run_cell_magic('sky', '--quiet', '1/0')\n"
        "except Exception as error:\n    print(type(error).__name__, [type(e).__name__ for e in error.exceptions])"
    )
    assert cell.stream() == "CellError ['ZeroDivisionError', 'ZeroDivisionError']\n"


@pytest.mark.parametrize(
    ("source", "line", "name"),
    [
        ("x = 1\n1 +", 3, "SyntaxError"),
        ("return 1", 2, "SyntaxError"),
        ("if True:\npass", 3, "IndentationError"),
        ("if True:\n    x = 1\n  y = 2", 4, "IndentationError"),
    ],
)
def test_a_cell_that_is_no_python_is_refused_before_anything_starts(book, source, line, name):
    cell = book.run(f"%%sky --name never --nodes 2\n{source}")
    assert cell.error_name == name
    assert f"Cell In[{cell.number}], line {line}" in cell.error
    assert "sky_jupyter" not in cell.error
    assert not cell.displays
    assert "never" not in pools_of(book)


def test_a_wrong_option_is_told_in_a_line_before_anything_starts(book):
    cell = book.run("%%sky --name never --nodez 2\n1")
    assert cell.stream("stderr") == "UsageError: %%sky: unknown option --nodez; did you mean '--nodes'?\n"
    assert cell.status == "error"
    assert len(cell.outputs) == 1
    assert "never" not in pools_of(book)


def test_a_value_that_cannot_be_sent_is_told_in_short(two):
    two.run("import sqlite3\nconnection = sqlite3.connect(':memory:')")
    cell = two.run("%%sky\nconnection")
    assert cell.error_name == "CaptureError"
    assert cell.error.startswith("CaptureError: connection: sqlite3.Connection cannot be pickled")
    assert "--no-capture connection" in cell.error
    assert len(cell.error.splitlines()) <= 3
    assert not cell.displays


def test_a_killed_rank_is_named_and_replaced(two):
    imports = "import statistics as st, xml.dom.minidom\nfrom math import sqrt as root, pi\nfrom fractions import *"
    for _ in range(2):
        assert two.run(f"%%sky\n{imports}").status == "ok"
    cell = two.run("%%sky\nimport os, signal, time\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)")
    assert "rank 1 died" in cell.run.split("\n")[0]
    assert "[1] died: killed by SIGKILL" in cell.run
    assert "SIGKILL" in cell.error
    later = two.run(f"%%sky\n{RANK}\nrank")
    assert later.body == ["[0] Out: 0", "[1] Out: 1"]
    # What was imported is no name that is missing: a new kernel imports it when a cell reads it.
    assert not {"st", "root", "pi", "Fraction"}.intersection(
        re.findall(r"\w+", cell.run.partition("missing on rank 1")[2])
    )
    again = two.run("%%sky\nroot(4), round(pi), Fraction(1, 2)")
    assert again.body == ["[0-1] Out: (2.0, 3, Fraction(1, 2))"], again.error
    assert two.run("%%sky\nst.mean([1, 3]), xml.dom.minidom.__name__").body == ["[0-1] Out: (2, 'xml.dom.minidom')"]


# Interrupts.


def test_an_interrupt_of_the_notebook_reaches_every_rank(two):
    cell = two.run(
        "%%sky\nimport time\nprint('begun', flush=True)\n"
        "try:\n    time.sleep(600)\nfinally:\n    print('stopped', rank)",
        until=lambda cell: bool(cell.displays) and "[0-1] begun" in cell.run,
    )
    assert cell.error_name == "KeyboardInterrupt"
    assert cell.error == "KeyboardInterrupt: ranks 0-1 interrupted"
    assert cell.body == ["[0-1] begun", "[0] stopped 0", "[1] stopped 1"]
    assert cell.run.split("\n")[0].endswith("· interrupted")
    assert two.run("%%sky\nrank").body == ["[0] Out: 0", "[1] Out: 1"]


def test_a_cell_can_be_interrupted_after_one_that_it_ran_has_failed(book):
    cell = book.run(
        "get_ipython().run_cell('1/0')\nimport time\nprint('goes on', flush=True)\ntime.sleep(20)",
        until=lambda cell: "goes on" in cell.stream(),
    )
    errors = [output.ename for output in cell.outputs if output.output_type == "error"]
    assert errors == ["ZeroDivisionError", "KeyboardInterrupt"]


def test_interrupts_are_ignored_between_a_cells_failure_and_its_reply(book):
    look = "lambda result: handlers.append((result.success, signal.getsignal(signal.SIGINT)))"
    book.run(f"import signal\nhandlers = []\nlook = {look}\nget_ipython().events.register('post_run_cell', look)")
    book.run("1/0")
    book.run("get_ipython().events.unregister('post_run_cell', look)")
    default, ignored = "signal.default_int_handler", "signal.SIG_IGN"
    assert book.value(f"[(True, {default}), (False, {ignored}), (True, {default})] == [*handlers, (True, {default})]")


def test_an_interrupt_while_a_pool_starts_leaves_no_pool(book):
    cell = book.run("%sky up --nodes 3 --name early", until=lambda cell: bool(cell.displays))
    assert cell.error_name == "KeyboardInterrupt"
    assert len(cell.error.splitlines()) == 1
    assert "interrupted" in cell.run
    assert "early" not in pools_of(book)


# Verbs.


def test_status_shows_each_node_and_rank_and_how_busy_they_are(two):
    end = time.monotonic() + 60
    while "CPU" not in (text := told(two.run("%sky status"))):
        assert time.monotonic() < end, text
        time.sleep(0.2)
    lines = [re.sub(r"[\d.]+", "N", line) for line in text.splitlines()]
    assert re.fullmatch(r"pool default \(current\): N local nodes, ready, up N( min N)? s", lines[0])
    assert re.fullmatch(r"  node N \(N\): idle · CPU N% [▁-█]+ · memory N of N GB [▁-█]+", lines[1])
    assert lines[2] == "    rank N: idle (process N, N MB)"
    assert len([line for line in lines if line.startswith("  node")]) == 2
    assert lines[-1].startswith("  started in N s: ")
    shown = two.run("%sky")
    (data,) = [display.data for display in shown.displays]
    assert set(data) == {"application/vnd.sky.pool.v1+json", "text/html", "text/plain"}
    (kept,) = data["application/vnd.sky.pool.v1+json"]["pools"]
    assert [node["state"] for node in kept["nodes"]] == ["idle", "idle"]
    html = shown.html
    assert html.count("<tr>") == 3
    assert "<script" not in html
    assert 'alt="CPU use of the last' in html


def test_up_of_what_is_there_says_so(two):
    assert two.run("%sky up --nodes 2").stream() == "pool default: 2 local nodes, live\n"


def test_files_go_to_the_nodes_and_come_back(two):
    two.run("import os\nos.makedirs('stuff/inner', exist_ok=True)\nopen('stuff/inner/a', 'w').write('a' * 2000)")
    put = two.run("%sky put stuff 'a copy/'")
    assert re.fullmatch(r"put stuff · stuff \(2 kB\): nodes 0, 1; 2 kB copied · [\d.]+ s", put.run)
    two.run("%%sky\nlen(open('a copy/stuff/inner/a').read())")
    assert two.value("_sky.values") == [2000, 2000]
    get = two.run("%sky get 'a copy/stuff' back --on 0-1")
    assert "nodes 0, 1; 4 kB copied" in get.run
    assert two.value("sorted(os.listdir('back'))") == ["node-0", "node-1"]
    again = two.run("%sky put stuff 'a copy/'")
    assert "it was there already" in again.run


def test_a_file_that_cannot_be_moved_is_told_in_short(two):
    missing = two.run("%sky put nowhere")
    assert missing.stream("stderr") == (
        "UsageError: nowhere is not there; put takes a file or folder of this machine\n"
    )
    assert missing.displays == []
    two.run("import os\nos.makedirs('folder', exist_ok=True)\nopen('file', 'w').close()")
    clash = two.run("%sky put file folder")
    assert clash.error_name == "TransferError"
    assert "is a folder: a file cannot take its place; write folder/ to have it in that folder" in clash.error
    assert len(clash.error.splitlines()) <= 3
    assert "failed" in clash.run
    assert "has nodes 0 to 1, not 5" in two.run("%sky put file x --on 5").stream("stderr")


def test_restart_gives_new_kernels_on_the_same_nodes(two):
    two.run("%%sky\nimport os\nlost = 1\nos.getpid()")
    before = two.value("_sky.values")
    cell = two.run("%sky restart")
    assert "new kernels on all ranks" in cell.displays[0].data["text/plain"]
    assert "lost, as only the nodes had them: " in cell.stream()
    assert "lost" in cell.stream().partition(": ")[2]
    two.run(f"%%sky\nimport os\n{RANK}\nos.getpid()")
    assert not set(before) & set(two.value("_sky.values"))
    assert "NameError" in two.run("%%sky\nlost").error


@pytest.mark.slow
def test_restart_with_other_options_makes_another_pool(book):
    book.run("%sky up --name changing")
    cell = book.run("%sky restart --name changing --nodes 2 --env A=1")
    assert "2 local nodes ready" in cell.displays[0].data["text/plain"]
    assert book.run("%%sky\nimport os\nos.environ['A']").body == ["[0-1] Out: '1'"]
    book.run("%sky down --name changing")


def test_interrupt_of_an_idle_pool_says_that_nothing_runs(two):
    assert two.run("%sky interrupt").stream() == "pool default: nothing runs\n"


def test_verbs_name_the_pools_there_are(two):
    cell = two.run("%sky down --name defalt")
    assert cell.error.startswith("PoolError: there is no pool 'defalt'; did you mean 'default'?; live: default")


def where(book: Notebook, words: str) -> str:
    """What the magic says once it says this: on a busy machine it waits for no stack."""
    end = time.monotonic() + 60
    while words not in (text := book.run("%sky where").stream()):
        assert time.monotonic() < end, text
    return text


def test_where_tells_what_each_rank_is_at(two):
    assert where(two, "idle") == "ranks 0-1 are idle\n"
    two.run("import threading, time\nfrom sky_jupyter.pool.open_pools import pools\nseen = []")
    two.run(
        "def look():\n"
        "    while 'load' not in ''.join(seen): time.sleep(0.1); seen.append(str(pools.current.where()))\n"
        "    pools.current.interrupt()\n"
        "watcher = threading.Thread(target=look); watcher.start()"
    )
    two.run("def load(seconds):\n    import time\n    time.sleep(seconds)")
    two.run("%%sky\nload(600 if rank == 1 else 0)")
    two.run("watcher.join(60)")
    assert re.match(
        r"rank 1 sleeps in load \(Cell In\[\d+\], line 2\).*\n"
        r"    Cell In\[\d+\], line 2: load\(600 if rank == 1 else 0\)\n"
        r"    the notebook:3 in load\n",
        two.value("[text for text in seen if 'load' in text][-1]"),
    ), two.value("seen")


def test_down_ends_all_pools_and_status_says_how_to_make_one(book):
    book.run("%sky up")
    assert "ended" in book.run("%sky down --all").stream()
    for again in ("%sky down --all", "%sky down"):
        cell = book.run(again)
        assert (cell.status, cell.stream()) == ("ok", "there is no pool, and nothing to end\n")
    assert "%sky up --nodes 2" in book.run("%sky").stream()
    assert "there is no pool 'default'" in book.run("%sky down default").error


# Help and completion, through the kernel.


def test_comments_may_stand_above_the_magic_and_lines_keep_their_numbers(two):
    cell = two.run("#| label: first\n\n# what it is for\n%%sky\nprint('there')\n1 / 0")
    assert cell.body[0] == "[0-1] there", cell.body
    assert re.search(r"line 6\b", cell.error), cell.error
    assert two.run("x = 1\n%%sky\n1").status == "error"


def test_help_is_printed_even_where_the_cell_is_empty(book):
    for source in ("%%sky --help", "%%sky --help\n1", "%%sky -h"):
        text = book.run(source).stream()
        assert text.startswith("usage: %%sky")
        assert "--ranks-per-node N" in text
    assert "End a pool" in book.run("%sky down --help").stream()
    assert "the cell is empty; `%sky up --nodes 2` makes a pool" in book.run("%%sky --nodes 2").stream("stderr")


@pytest.mark.parametrize("source", ["%%sky?", "%sky?", "?%%sky"])
def test_a_question_mark_shows_the_manual(book, source):
    (page,) = book.run(source).payload
    assert "Run the cell on every rank of a pool of nodes." in page["data"]["text/plain"]


def test_tab_completes_options(book):
    assert book.complete("%%sky --nodes") == ["%%sky --nodes"]
    assert book.complete("%sky dow") == ["%sky down"]
    book.run("%sky up --name finder")
    assert book.complete("%%sky --name fi") == ["%%sky --name finder"]
    book.run("%sky down --name finder")


# Loading, unloading, running all.


@pytest.mark.slow
def test_unloading_ends_the_pools_and_loading_again_works(tmp_path, monkeypatch):
    # Loading tells of kept pools: those of tests before this one may be ending still.
    monkeypatch.setenv("SKY_REGISTRY", os.fspath(tmp_path / "registry" / "registry.sqlite"))
    with notebook(tmp_path) as book:
        book.run("%load_ext sky_jupyter")
        assert book.run("%%sky\n1").status == "ok"
        # Ranks that take long to end, as on a busy machine, are told of.
        ended = book.run("%reload_ext sky_jupyter")
        assert re.sub(r"(?m)^(ending: rank 0|rank 0 did not end within) .*\n?", "", ended.stream()) == ""
        assert {output["output_type"] for output in ended.outputs} <= {"stream"}
        assert pools_of(book) == []
        assert book.run("%%sky\n1/0").error.count("ZeroDivisionError: division by zero") == 1
        book.run("%unload_ext sky_jupyter")
        assert "not found" in book.run("%sky").stream("stderr")
        assert "Traceback" in book.run("1/0").error
        book.run("%load_ext sky_jupyter")
        assert "no pool is running" in book.run("%sky").stream()


def test_run_all_stops_at_a_failing_cell_and_the_file_keeps_what_was_shown(tmp_path):
    cells = ["%load_ext sky_jupyter", "%%sky --nodes 2\nprint('hello')", "%%sky\n1/0", "print('never')"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager().kernel_spec_manager = OwnKernelSpecs()
    with pytest.raises(CellExecutionError, match="division by zero"):
        client.execute()
    nbformat.validate(book)
    assert "widgets" not in book.metadata
    start, shown = book.cells[1].outputs
    assert start.data["text/plain"].startswith("pool default · 2 local nodes ready")
    assert shown.data["text/plain"].endswith("· done\n[0-1] hello")
    assert book.cells[2].outputs[-1].ename == "CellError"
    assert book.cells[3].outputs == []
    assert book.cells[3].execution_count is None


# Pools of programs.


@pytest.mark.slow
def test_cells_and_blocks_share_pools_by_their_names(two):
    two.run("import sky_jupyter as sky")
    # A block joins what the magics have made, and leaves it.
    joined = two.run("with sky.Compute(name='default') as pool:\n    print(sky.function(lambda: 5)() @ pool)")
    assert joined.stream() == "[5, 5]\n"
    assert two.run("%%sky --name default\nprint('still', rank)").status == "ok"
    # And a cell runs on what a block beside the kernel's event loop has made.
    block = (
        "async with sky.Compute(name='block') as pool:\n"
        "    get_ipython().run_cell_magic('sky', '--name block', 'mark = 6 * 7')\n"
        "    print(sky.function(lambda: mark)() >> pool)\n"
    )
    assert two.run(block).stream() == "42\n"
    assert (
        two.run("%%sky --name block --no-cluster\nimport sky_jupyter as sky; sky.instance_info().cluster").status
        == "ok"
    )
    assert two.run("%sky down --name block").status == "ok"


# Front ends without our extension.


@pytest.mark.slow
def test_a_front_end_without_our_extension_follows_the_run_by_updates_of_html_alone(book, tmp_path):
    go = tmp_path / "go"
    # What VS Code's Jupyter extension sets in a notebook's namespace.
    book.run("__vsc_ipynb_file__ = '/tmp/a.ipynb'")
    try:
        cell = book.run(
            "%%sky --nodes 2 --name updates\nimport os, time, sky_jupyter\nfor step in range(4):\n"
            "    print('step', step, 'of', sky_jupyter.instance_info().rank, flush=True)\n"
            f"    while step == 2 and not os.path.exists({str(go)!r}): time.sleep(0.05)",
            until=goes_on(go, r"\[1\] step 1 of 1"),
        )
    finally:
        book.run("%sky down --name updates\ndel __vsc_ipynb_file__")
    assert all(set(output.data) == {"text/html", "text/plain"} for output in cell.displays)
    during = [text for text in cell.updates if "running" in text and "[1] step 1 of 1" in text]
    assert during
    assert "step 3" not in during[0]
    assert "[0] step 3 of 0" in cell.run
    assert "step 3 of 1" in cell.html


# Calls.

SAYS = """
import sky_jupyter as sky
@sky.function
def says(x):
    import time
    time.sleep(x)
    print("said")
    return sky.instance_info().rank
"""


def test_all_calls_of_a_cell_are_seen_in_one_view(two):
    cell = two.run(f"{SAYS}\nlen(sky.gather(*[says(0)] * 20) >> sky)")
    assert cell.status == "ok", cell.outputs
    assert len(cell.displays) == 1
    assert cell.run.startswith("20 calls >> default")
    assert "said" in cell.run


def test_a_call_that_nobody_waits_for_shows_in_the_cell_that_sent_it(two, tmp_path):
    go = tmp_path / "go"
    waits = SAYS.replace("time.sleep(x)", "while x and not __import__('os').path.exists(x): time.sleep(0.05)")
    sent = two.run(
        f"{waits}\nfutures = [says({str(go)!r}) > sky for _ in range(3)]\nany(one.done() for one in futures)"
    )
    assert sent.status == "ok", sent.outputs
    (value,) = (output for output in sent.outputs if output.output_type == "execute_result")
    assert value.data["text/plain"] == "False"
    assert len(sent.displays) == 1
    go.touch()
    taken = two.run("sorted({one.result() for one in futures})")
    assert [output.output_type for output in taken.outputs] == ["execute_result"]
    assert taken.outputs[0].data["text/plain"] == "[0, 1]"
