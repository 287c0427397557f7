"""The end of a run's output, read from real journals of a pool's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.access.log_pages import LocalPages
from sky_jupyter.node.journal.journal import Journal
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.server import run_output
from sky_jupyter.util import process_identity


def journal(folder: Path, node: int, run: str, *events: dict[str, Any]) -> None:
    (folder / f"n{node}" / "journal").mkdir(parents=True, exist_ok=True)
    Journal(folder / f"n{node}" / "journal" / f"{run}.jsonl").append(events)


def stream(rank: int, text: str) -> dict[str, Any]:
    return {"kind": "stream", "rank": rank, "name": "stdout", "text": text}


def test_each_rank_has_what_it_printed_and_how_it_ended(tmp_path):
    registry = Registry(tmp_path / "registry.sqlite")
    registry.intend("f00d", "one", "local", 2, True)
    registry.update("f00d", "ready", [str(tmp_path)])
    row = registry.pool("f00d")
    registry.close()
    assert row is not None
    assert row.machine == process_identity.here().host
    assert run_output.local(row, "feed") == []
    error = {"kind": "end", "rank": 1, "status": "error", "traceback": ["Traceback", "ValueError: no"]}
    died = {"kind": "end", "rank": 0, "status": "died", "text": "killed by SIGKILL"}
    journal(tmp_path, 0, "feed", {"kind": "begin", "run": "feed"}, stream(0, "a\n"), stream(0, "b\n"), died)
    journal(tmp_path, 1, "feed", {"kind": "begin", "run": "feed"}, stream(1, "c\n"), error)
    journal(tmp_path, 1, "feed2", stream(1, "another run\n"))
    assert run_output.local(row, "feed") == [
        {"rank": 0, "text": "a\nb\nkilled by SIGKILL\n"},
        {"rank": 1, "text": "c\nTraceback\nValueError: no\n"},
    ]


@pytest.mark.parametrize("nodes", [(0, 0), (0, 1), (1, 0)], ids=["same node", "next node", "node before"])
@pytest.mark.parametrize("names", ["af", "fa"], ids=["names in order", "names in reverse"])
def test_of_a_call_that_was_retried_the_last_try_is_shown(tmp_path: Path, nodes: tuple[int, int], names: str) -> None:
    registry = Registry(tmp_path / "registry.sqlite")
    registry.intend("f00d", "one", "local", 2, True)
    registry.update("f00d", "ready", [str(tmp_path)])
    row = registry.pool("f00d")
    registry.close()
    assert row is not None
    # As `attempt_name` names them: by the node, and by its agent's random incarnation.
    tries = [(node, f"feed.{node}-{name * 16}") for node, name in zip(nodes, names, strict=True)]
    ends: tuple[dict[str, Any], ...] = ({"kind": "end", "rank": 0, "status": "ok"},)
    for number, (node, name) in reversed(list(enumerate(tries))):
        begin = {"kind": "begin", "ranks": [0], "mine": [0], "began": 1e9 + number}
        journal(tmp_path, node, name, begin, stream(0, f"try {number}\n"), *(ends if number else ()))
    assert run_output.local(row, "feed") == [{"rank": 0, "text": "try 1\n"}]
    (page,) = LocalPages(row).page("feed")
    assert page.over
    assert [event["text"] for event in page.events if event["kind"] == "stream"] == ["try 1\n"]


def test_of_a_flood_the_end_is_shown(tmp_path):
    journal(tmp_path, 0, "feed", *(stream(0, f"line {number:06}\n") for number in range(100_000)))
    (path,) = Journal.found(tmp_path / "n0" / "journal")
    (rank,) = run_output.by_rank(run_output._tail(path))
    assert len(rank["text"]) == run_output.SHOWN
    assert rank["text"].endswith("line 099998\nline 099999\n")
