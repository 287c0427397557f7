"""The pool panel in text and in HTML, from facts as docs/actions.md has them."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

from sky_jupyter.display.notebook.pool_panel import MIME, picture, spark, to_html, to_json, to_text

GB = 1_000_000_000


def node(number: int, state: str = "idle", *, gpus: int = 0, samples: int = 60, **more: Any) -> dict[str, Any]:
    row = [0.5, 4.0 * GB, *[0.9, 60.0 * GB] * gpus]
    facts = {
        "node": number,
        "state": state,
        "host": "",
        "address": f"10.0.0.{number}",
        "uptime": 65.0,
        "ranks": [{"rank": number, "pid": 7, "run": "abc" if state == "busy" else None, "memory": 48e6}],
        "cores": 8.0,
        "memory": 16.0 * GB,
        "gpus": [{"name": "A100", "memory": 80.0 * GB}] * gpus,
        "now": row if samples else None,
        "samples": [[float(samples - 1 - age), *row] for age in range(samples)],
    }
    return {**facts, **more}


def pool(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    facts = {
        "name": "train",
        "current": True,
        "about": f"{len(nodes)} ssh nodes",
        "state": "ready",
        "why": "",
        "uptime": 125.0,
        "world_size": len(nodes),
        "away": {},
        "apart": {},
        "runs": [],
        "phases": [],
        "nodes": list(nodes),
    }
    return {**facts, **more}


def test_a_pool_is_told_node_by_node() -> None:
    run = {"id": "abc", "title": "train(data)", "count": 3, "elapsed": 12.0, "interrupted": False}
    run = {**run, "timed_out": False, "ranks": [0, 1], "left": [1], "failed": []}
    phases = [
        {"phase": "connect", "state": "done", "elapsed": 0.5, "usual": None, "lines": []},
        {"phase": "bootstrap", "state": "on", "elapsed": 12.0, "usual": 40.0, "lines": ["host1: uv"]},
    ]
    text = to_text(pool(node(0, gpus=2), node(1, "busy", host="host1"), runs=[run], phases=phases))
    half, three = "▅" * 20, "▃" * 20
    assert text.splitlines() == [
        "pool train (current): 2 ssh nodes, ready, up 2 min 5 s",
        "  In[3]: train(data) · 12.0 s · rank 1 works",
        f"  node 0 (10.0.0.0): idle · CPU 50% {half} · memory 4.0 of 16.0 GB {three}"
        + f" · A100 90% {'▇' * 20}, 60.0 of 80.0 GB" * 2,
        "    rank 0: idle (process 7, 48 MB)",
        f"  node 1 (host1): busy · CPU 50% {half} · memory 4.0 of 16.0 GB {three}",
        "    rank 1: busy (process 7, 48 MB)",
        "  started in 12.5 s: connect 0.5 s, bootstrap 12.0 s of about 40.0 s",
    ]


def test_what_is_wrong_is_told() -> None:
    lost = node(1, "lost", samples=0, ranks=[])
    replaced = node(0, "replacing", samples=0, ranks=[{"rank": 0, "pid": 0, "run": None, "memory": 0.0}])
    text = to_text(pool(replaced, lost, state="broken", why="the forkserver ended", away={"host1": "unreachable"}))
    assert text.splitlines() == [
        "pool train (current): 2 ssh nodes, broken (the forkserver ended)",
        "  host1: unreachable",
        "  node 0 (10.0.0.0): replacing",
        "    rank 0: its kernel is being replaced",
        "  node 1 (10.0.0.1): lost; `%sky restart` recreates it",
    ]
    assert "unreachable" in to_html(pool(replaced, lost, away={"host1": "unreachable"}))


def test_a_large_pool_is_not_told_rank_by_rank() -> None:
    assert len(to_text(pool(*map(node, range(64)))).splitlines()) == 65


def test_what_a_notebook_keeps_of_a_large_pool_is_small_and_has_the_newest() -> None:
    lines = [f"{number} {'x' * 500}" for number in range(100)]
    part = {"node": 0, "state": "done", "elapsed": 1.0, "line": "y" * 500}
    phase = {"phase": "files", "state": "done", "elapsed": 1.0, "usual": None, "lines": lines, "nodes": [part]}
    large = pool(*(node(number, gpus=2, samples=300) for number in range(64)), phases=[phase] * 8)
    kept = to_json([large])
    assert len(json.dumps(kept)) < 500_000
    assert len(to_html(large)) < 1_000_000
    (told,) = kept["pools"]
    ages = [sample[0] for sample in told["nodes"][63]["samples"]]
    assert (len(ages), ages[0], ages[-1]) == (60, 297.0, 2.0)
    assert told["nodes"][63]["samples"][0][1:] == [0.5, 4.0 * GB, 0.9, 60.0 * GB, 0.9, 60.0 * GB]
    assert [len(told["phases"][0]["lines"]), told["phases"][0]["lines"][-1][:3]] == [20, "99 "]
    # Few samples are kept as they are.
    (told,) = to_json([pool(node(0, samples=3))])["pools"]
    assert [sample[0] for sample in told["nodes"][0]["samples"]] == [2.0, 1.0, 0.0]


def test_a_pool_without_samples_is_json_too() -> None:
    kept = to_json([pool(node(0, samples=0), phases=[{"phase": "a", "lines": []}])])
    assert json.loads(json.dumps(kept))["pools"][0]["nodes"][0]["samples"] == []
    assert MIME.endswith("+json")


def test_sparklines_show_the_newest_last_whatever_their_length() -> None:
    assert spark([]) == ""
    assert spark([0.0, 1.0]) == "▁█"
    assert spark([-5.0, 9.0, float("1e300")]) == "▁██"
    assert spark([0.0] * 299 + [1.0] * 15).endswith("▁█")
    assert len(spark([0.5] * 300)) == 20
    svg = base64.b64decode(re.findall('base64,([^"]*)', picture([0.0, 1.0, 0.5], "use"))[0]).decode()
    assert 'points="79.5,15.0 79.7,1.0 80.0,8.0"' in svg


def test_what_nodes_and_code_say_stays_text_in_html() -> None:
    run = {"id": "abc", "title": "<script>1</script>", "count": 0, "elapsed": 1.0, "interrupted": True}
    run = {**run, "timed_out": False, "ranks": [0], "left": [0], "failed": []}
    bad = "<img src=x onerror=alert(1)>"
    named = node(0, host=bad, gpus=1)
    named["gpus"][0]["name"] = bad
    phase = {"phase": "bootstrap", "state": "failed", "elapsed": 1.0, "usual": None, "lines": [bad]}
    html = to_html(pool(named, runs=[run], phases=[phase], why=bad, state="broken", away={bad: bad}, apart={bad: bad}))
    seen: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.extend([tag, *(name for name, _ in attrs)])

    Tags().feed(html)
    assert not {"script", "onerror"} & set(seen)
    assert seen.count("img") == 3
