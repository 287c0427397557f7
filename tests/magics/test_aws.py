"""``%%sky --provider aws`` as a user has it: a real kernel, the real provider, and instances that are hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("boto3")
pytest.importorskip("paramiko")
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.magics.notebook import Cell, Notebook, notebook
from tests.pool.remote import MARKS, wait_until
from tests.providers import aws_world
from tests.providers.aws_hosts import HostedAws

pytestmark = MARKS
NOTHING = {"groups": 1}  # the security group is kept


@pytest.fixture(scope="module")
def aws() -> Iterator[HostedAws]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(0) as world, aws_world.hosts(world) as made:
        yield made


@pytest.fixture(scope="module")
def book(aws: HostedAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as made:
        assert made.run("%load_ext sky_jupyter").status == "ok"
        yield made


def shown(cell: Cell) -> str:
    """The text of a table, printed or displayed."""
    return cell.stream() + "".join(one.data["text/plain"] for one in cell.outputs if "data" in one)


def left(aws: HostedAws) -> dict[str, int]:
    return {name: number for name, number in aws.left().items() if number}


@pytest.mark.slow
def test_a_spot_pool_says_what_it_costs_hears_of_its_interruption_and_leaves_nothing(
    aws: HostedAws, book: Notebook
) -> None:
    assert "g5.xlarge" in shown(book.run("%sky offers --accelerator A10G"))
    hook = "import socket, sky_jupyter as sky\nheard = []\n"
    hook += "sky.on_interruption(lambda: (print('I hear'), heard.append(1)))\n"
    aws.refuse("us-east-1a", times=1)
    cell = book.run(f"%%sky --provider aws --nodes 2 --spot\n{hook}print(socket.gethostname())\n6 * 7", timeout=240)
    assert cell.status == "ok", cell.outputs
    assert "[0-1] Out: 42" in cell.run
    assert re.search(r"\$0\.\d+ an hour", cell.run)
    # What it will cost is said before it is bought, and a refusal as it comes.
    price = r"2 × m7i\.large spot in us-east-1%s: \$0\.\d+ an hour"
    assert any(re.search(price % "a", update) for update in cell.updates)
    assert any(re.search(r"us-east-1a: [^;]+; " + price % "b", update) for update in cell.updates)
    assert {one["zone"] for one in aws.instances(state="running")} == {"us-east-1b"}
    assert shown(book.run("%sky cost")).count("m7i.large") == 2

    first, second = aws.alive()
    told: list[str] = []

    def tell(cell: Cell) -> bool:
        if not told and any("waiting" in update for update in cell.updates):
            told.append(second)
            aws.notice(second)
        return False

    waits = "import time\nprint('waiting')\nwhile not (sky.interruption() and heard):\n    time.sleep(0.1)\n'told'"
    cell = book.run(f"%%sky\n{waits}", until=tell, timeout=120)
    assert "[0-1] Out: 'told'" in cell.run
    assert "I hear" in cell.run
    assert re.search(rf"{second}\) is taken away in \d+ s", cell.run), cell.run
    aws.interrupt(second)
    wait_until(lambda: aws.instances(id=second, reason="Server.SpotInstanceTermination"))

    assert book.run("%sky down", timeout=240).status == "ok"
    wait_until(lambda: not aws.alive())
    assert aws.instances(id=first)[0]["state"] == "terminated"
    assert left(aws) == NOTHING


@pytest.mark.slow
def test_a_pool_whose_only_machine_is_taken_away_is_made_anew_by_the_next_cell(aws: HostedAws, book: Notebook) -> None:
    line = "%%sky --name lone --provider aws --nodes 1 --spot\n"
    assert book.run(f"{line}import socket\nsocket.gethostname()", timeout=240).status == "ok"
    (first,) = aws.alive()
    # Without a notice: nobody but AWS can tell that it is gone, and not only the way to it.
    aws.interrupt(first)
    wait_until(lambda: not aws.host(first).pid)
    book.run("%%sky --name lone\n1", timeout=240)
    assert "Out: 42" in book.run("%%sky --name lone\n6 * 7", timeout=240).run
    assert [id for id in aws.alive() if id != first]
    assert book.run("%sky down --name lone", timeout=240).status == "ok"
    wait_until(lambda: not aws.alive())
    assert left(aws) == NOTHING


@pytest.mark.long
def test_a_pool_that_is_stopped_costs_its_disk_and_is_started_with_a_price(aws: HostedAws, book: Notebook) -> None:
    line = "%%sky --name kept --provider aws --allocation on-demand\n"
    assert book.run(f"{line}6 * 7", timeout=240).status == "ok"
    assert book.run("%sky stop --name kept", timeout=240).status == "ok"
    assert [one["state"] for one in aws.instances(market="on-demand")] == ["stopped"]
    assert "unknown" not in shown(book.run("%sky cost"))
    assert book.run("%sky start kept", timeout=240).status == "ok"
    cell = book.run("%%sky --name kept\n6 * 7", timeout=240)
    assert "Out: 42" in cell.run
    assert re.search(r"\$0\.\d+ an hour", cell.run), cell.run
    assert book.run("%sky down --name kept", timeout=240).status == "ok"
    wait_until(lambda: not aws.alive())
    assert left(aws) == NOTHING


@pytest.mark.long
def test_a_kernel_that_is_shut_down_ends_its_machines_and_a_lost_answer_buys_none_twice(
    aws: HostedAws, tmp_path: Path
) -> None:
    before = len(aws.instances())
    aws.plan("RunInstances", code="RequestLimitExceeded", status=503)
    aws.plan("RunInstances", "lost")
    with notebook(tmp_path) as book:
        assert book.run("%load_ext sky_jupyter").status == "ok"
        cell = book.run("%%sky --provider aws --nodes 2\n6 * 7", timeout=240)
        assert "[0-1] Out: 42" in cell.run
        assert len(aws.instances()) == before + 2
    wait_until(lambda: not aws.alive())
    assert left(aws) == NOTHING
