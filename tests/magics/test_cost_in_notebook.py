"""A notebook on machines that cost: what it says before it buys, while cells run, and at the end of the budget."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook
from tests.pool.remote import MARKS
from tests.programs import ROOT
from tests.providers.cloud import HOSTS, HOURLY, STORE, Cloud
from tests.providers.distribution import install

pytestmark = [*MARKS, pytest.mark.long]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


def test_a_notebook_says_what_its_pool_costs_and_asks_when_the_budget_is_used_up(world: World, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"), hosts=("host0", "host1"))
    install(tmp_path)
    # Ten dollars a second each.
    variables = {STORE: cloud.store, HOSTS: "host0 host1", HOURLY: "36000"}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    variables["SKY_SSH_CONFIG"] = str(world.ssh_config(tmp_path / "config"))
    with cloud.powered(world), notebook(tmp_path, **variables) as book:
        assert book.run("%load_ext sky_jupyter").status == "ok"
        assert book.run("%sky cost").stream() == "no machine was ever bought for a pool\n"
        up = book.run("%sky up --provider cloud --nodes 2 --max-cost 600", answers=[])
        assert "2 cloud nodes ready, $72,000.00 an hour" in up.html
        cell = book.run("%%sky\nimport time\ntime.sleep(45)\nprint('done')", answers=["1000000"])
        assert cell.status == "ok"
        assert [text.partition(".")[0] for text, _ in cell.asked] == ["Pool 'default' has used up its budget of $600"]
        page = cell.html
        assert "so far, $72,000.00 an hour" in page
        assert "it ends in 60 s (`%sky up --name default --max-cost 1200` gives it more)" in page
        table = book.run("%sky cost").stream()
        assert table.count("$36,000.00") == 2
        assert "so far, $72,000.00 an hour" in table
        assert "so far, $72,000.00 an hour" in book.run("%sky").html
        assert book.run("%sky down").status == "ok"
        ended = book.run("%sky cost").stream()
        assert ended.count("ended") == 2
        assert "an hour" not in ended
        print(up.html, page, table, ended, sep="\n")
    assert cloud.alive() == []
