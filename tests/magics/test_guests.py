"""Two notebooks on one pool: one manages it, and the other has joined it."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.magics.notebook import Cell, Notebook, notebook

LOAD = "%load_ext sky_jupyter"
NAME = "shared-by-two"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Notebook]:
    folder = tmp_path / "manager"
    folder.mkdir()
    with notebook(folder, JPY_SESSION_NAME="/home/ada/train.ipynb") as page:
        page.run(LOAD)
        yield page


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Notebook]:
    folder = tmp_path / "guest"
    folder.mkdir()
    with notebook(folder, JPY_SESSION_NAME="/home/ada/eval.ipynb") as page:
        page.run(LOAD)
        yield page


def up(page: Notebook, options: str = "") -> None:
    cell = page.run(f"%sky up --nodes 2 --name {NAME} {options}")
    assert cell.status == "ok", cell.outputs


def join(page: Notebook) -> None:
    cell = page.run(f"%sky join {NAME}")
    assert cell.status == "ok", cell.outputs


def waits(cell: Cell) -> bool:
    return bool(cell.displays) and "waits for a run of notebook" in cell.run


def printed(cell: Cell) -> list[str]:
    """What the ranks have printed and returned: on a busy machine the view tells of a wait for the turn besides."""
    return [line for line in cell.body if not line.startswith("waits for ")]


def test_a_second_notebook_joins_runs_cells_in_turn_and_is_told_of_the_end(manager: Notebook, guest: Notebook) -> None:
    up(manager)
    assert manager.run("%%sky\norder, x = [], 41").status == "ok"
    refused = guest.run(f"%%sky --name {NAME}\nx")
    assert f"`%sky join {NAME}` runs cells there as its guest" in refused.error
    assert "train.ipynb" in refused.error
    join(guest)
    assert printed(guest.run("%%sky\nprint('of the guest', x)\ny = x + 1")) == ["[0-1] of the guest 41"]
    assert printed(manager.run("%%sky\ny")) == ["[0-1] Out: 42"]
    assert guest.value("_sky.ranks") == (0, 1)

    def work(page: Notebook, who: str, cells: list[Cell]) -> None:
        cells += [page.run(f"%%sky\norder.append('{who}{number}')\nprint('{who}{number}')") for number in range(4)]

    cells: dict[str, list[Cell]] = {"m": [], "g": []}
    threads = [
        threading.Thread(target=work, args=(page, who, cells[who])) for page, who in ((manager, "m"), (guest, "g"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who, its in cells.items():
        assert [printed(cell)[0] for cell in its] == [f"[0-1] {who}{number}" for number in range(4)]
    # One line for both ranks: they ran them in the same order.
    assert printed(manager.run("%%sky\nlen(order), sorted(order) == sorted(set(order))")) == ["[0-1] Out: (8, True)"]
    assert printed(manager.run("%%sky\nprint(*order)"))[0].startswith("[0-1] ")

    listed = manager.run(f"%sky runs --name {NAME}").stream()
    assert re.search(r" train\.ipynb +In\[\d+\] +order, x", listed)
    assert re.search(r" eval\.ipynb +In\[\d+\] +print\('of the guest", listed)

    for line in ("%sky down", "%sky restart", "%sky resize 3", "%%sky --pip tomli\n1"):
        assert "guest of pool" in guest.run(line).error, line
    assert "ZeroDivisionError" in guest.run("%%sky\n1 / 0").error
    assert printed(manager.run("%%sky\nx")) == ["[0-1] Out: 41"]

    assert manager.run("%sky down").status == "ok"
    assert f"pool '{NAME}'" in guest.run("%%sky\nx").error
    assert "uses this machine" in guest.run("%%sky\nx").error, "it does not run here instead"


@pytest.mark.slow
def test_a_cell_that_waits_is_interrupted_alone(manager: Notebook, guest: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    up(manager)
    join(guest)
    assert guest.run("%%sky\n1").status == "ok"
    cells: list[Cell] = []
    code = f"%%sky\nimport os, time\nprint('at it')\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.02)"
    at_it = threading.Event()

    def note(cell: Cell) -> bool:
        if cell.displays and "at it" in cell.run:
            at_it.set()
        return False

    thread = threading.Thread(target=lambda: cells.append(manager.run(code, until=note)))
    thread.start()
    assert at_it.wait(60)
    assert guest.run("%%sky\nnever = 1", until=waits).error_name == "KeyboardInterrupt"
    go.touch()
    thread.join()
    assert cells[0].status == "ok"
    assert printed(guest.run("%%sky\n'never' in globals()")) == ["[0-1] Out: False"]
    left = guest.run(f"%sky leave {NAME}")
    assert left.status == "ok"
    assert manager.run("%%sky\n2").status == "ok"
    assert "%sky join" in guest.run("%%sky\n1").error


@pytest.mark.slow
def test_a_guest_of_a_kept_pool_outlives_the_manager_and_can_become_it(manager: Notebook, guest: Notebook) -> None:
    up(manager, "--keep")
    join(guest)
    assert guest.run("%%sky\nx = 1").status == "ok"
    refused = guest.run(f"%sky attach {NAME}")
    assert "--take-over" in refused.error
    # It is a guest all the same.
    assert printed(guest.run("%%sky\nx")) == ["[0-1] Out: 1"]
    assert guest.run("%%sky --detach\nimport time; time.sleep(1000)").status == "ok"
    assert "goes on" in guest.run(f"%sky attach {NAME} --take-over").error
    assert guest.run("%sky interrupt").status == "ok"
    manager.manager.signal_kernel(signal.SIGKILL)
    assert printed(guest.run("%%sky\nx + 1"))[-1] == "[0-1] Out: 2"
    assert guest.run(f"%sky attach {NAME}").status == "ok"
    assert printed(guest.run("%%sky\nx + 2")) == ["[0-1] Out: 3"]
    assert guest.run("%sky down").status == "ok"


COLLECTIVE = """%%sky
import torch
import torch.distributed as dist
for _ in range(20):
    value = torch.ones(1)
    dist.all_reduce(value)
print(int(value))"""


@pytest.mark.slow
def test_collectives_of_two_notebooks_meet(manager: Notebook, guest: Notebook) -> None:
    up(manager, "--plugins torch")
    join(guest)
    cells: dict[str, list[Cell]] = {"m": [], "g": []}

    def work(page: Notebook, its: list[Cell]) -> None:
        its += [page.run(COLLECTIVE) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(page, cells[who])) for page, who in ((manager, "m"), (guest, "g"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [printed(cell)[0] for its in cells.values() for cell in its] == ["[0-1] 2"] * 8
    # One rank fails between two collectives: the guest sets them up again, and the manager's cell finds them in step.
    failed = guest.run("%%sky\nif dist.get_rank():\n    1 / 0\ndist.all_reduce(value)")
    assert failed.status == "error"
    assert printed(manager.run(COLLECTIVE))[0] == "[0-1] 2"
