"""`%sky up --timings`: where a start spent its time."""

from __future__ import annotations

import re
from pathlib import Path

from sky_jupyter.magics.start_timings import table
from sky_jupyter.pool.base.phases import PhaseLog, StartTiming
from tests.magics.notebook import notebook

NODES = 12


def test_the_table_has_each_phase_its_steps_and_what_lies_between() -> None:
    timings = [
        StartTiming(10.0, 1.0, "environment", "checking"),
        StartTiming(10.5, 0.25, "environment", "node 1: building", 2),
        StartTiming(11.5, 2.0, "agent", "starting 2 nodes"),
        StartTiming(11.5, 0.5, "agent", "until the scheduler runs", 1),
        StartTiming(12.0, 0.001, "agent", "until nothing", 1),
        StartTiming(12.001, 1.499, "agent", "until its end", 1),
    ]
    assert table(timings, (9.9, 14.0)).splitlines() == [
        "  at  took  what",
        "0.00  0.10  in the notebook, between the phases",
        "0.10  1.00  environment: checking",
        "0.60  0.25      node 1: building",
        "1.10  0.50  in the notebook, between the phases",
        "1.60  2.00  agent: starting 2 nodes",
        "1.60  0.50    until the scheduler runs",
        "2.10  1.50    until its end",
        "3.60  0.50  in the notebook, after the last phase",
        "4.10        ready",
    ]


def test_the_slowest_nodes_of_a_phase_are_shown() -> None:
    log = PhaseLog()
    phase = log.begin("environment", "building")
    for node in range(NODES):
        log.on_node(node, "on", "unpacking")
    for node in reversed(range(NODES)):
        log.on_node(node, "done")
    phase.end("done")
    parts = [one for one in log.timings() if one.level == 2]
    assert len(parts) == NODES
    assert [one.elapsed for one in parts] == sorted((one.elapsed for one in parts), reverse=True)
    assert table(log.timings()).count("node ") == 8


def test_a_start_is_accounted_for_and_a_live_pool_tells_of_its_last_one(tmp_path: Path) -> None:
    with notebook(tmp_path) as book:
        book.run("%load_ext sky_jupyter")
        cell = book.run("%sky up --nodes 1 --timings")
        assert cell.status == "ok", cell.outputs
        rows = re.findall(r"^ *(\d+\.\d\d)  +(\d+\.\d\d)  (.*)$", cell.stream(), re.MULTILINE)
        phases = [text for _, _, text in rows if not text.startswith(" ")]
        assert [text.partition(":")[0] for text in phases if "notebook" not in text] == [
            "environment",
            "agent",
            "plugins",
        ]
        (whole,) = re.findall(r"^ *(\d+\.\d\d) +ready$", cell.stream(), re.MULTILINE)
        told = sum(float(took) for _, took, text in rows if not text.startswith(" "))
        # Each row is rounded, and what is shorter than half of a hundredth is left out.
        assert abs(told - float(whole)) < 0.01 * (len(rows) + 4)
        again = book.run("%sky up --timings").stream()
        # Steps shorter than half of a hundredth are left out: which ones is the machine's matter.
        for _, took, text in rows:
            assert f"  {took}  {text}" in again or "notebook" in text
        book.run("%sky down")
