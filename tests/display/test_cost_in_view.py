"""What a pool costs stands in the header of each run, in all forms; of pools that cost nothing, nothing does."""

from __future__ import annotations

import io
import time

import pytest

from sky_jupyter.display import views
from sky_jupyter.display.model import run_html, saved_output
from sky_jupyter.display.model.run_model import RunModel
from sky_jupyter.display.notebook import pool_panel
from sky_jupyter.display.notebook.deltas import Feed
from sky_jupyter.display.terminal.live_view import ConsoleRunView
from sky_jupyter.pool.base.events import OutputEvent
from sky_jupyter.util.pool_cost import MachineCost, PoolCost, TimeLeft, to_json


def cost(total: float | None, hourly: float | None) -> PoolCost:
    machine = MachineCost("m1", "small", "", "here", "here-a", "running", 0.0, None, hourly, total)
    return PoolCost("p", (machine,), at=time.time())


def test_a_runs_header_has_the_cost_in_each_form() -> None:
    model = RunModel("sky", [0])
    assert model.snapshot(10).cost == ""
    assert "cost" not in saved_output.to_json(model.state(10), "v")
    model.cost = lambda: cost(1.5, 13.2)
    said = "$1.50 so far, $13.20 an hour"
    assert run_html.to_text(model.snapshot(10)).splitlines()[0].endswith(f"running · {said}")
    assert said in run_html.to_html(model.snapshot(10))
    assert saved_output.to_json(model.state(10), "v")["cost"]["total"] == 1.5
    model.cost = lambda: cost(None, None)
    assert run_html.to_text(model.snapshot(10)).endswith("price unknown")


@pytest.mark.parametrize(("seconds", "said"), [(7500, "2 h 05"), (1170, "20"), (-5, "0")])
def test_a_runs_header_has_what_a_scheduler_leaves_of_the_pool_s_time(seconds: float, said: str) -> None:
    model = RunModel("sky", [0])
    model.cost = lambda: TimeLeft(1000.0 + seconds, 1000.0)
    said = f"{said} min of the allocation left"
    assert run_html.to_text(model.snapshot(10)).splitlines()[0].endswith(f"running · {said}")
    page = saved_output.to_json(model.state(10), "v")["cost"]
    assert (page["ends"] - page["at"], page["text"]) == (seconds, said)


def test_a_saved_run_keeps_what_the_pool_had_cost_at_its_end() -> None:
    costs = iter([cost(1.5, 13.2), cost(9.9, 13.2)])
    model = RunModel("sky", [0])
    model.cost = lambda: next(costs)
    model.finish(3.0)
    saved = saved_output.bundle(model, "v")
    for kind in ("text/html", "text/plain"):
        assert "$1.50 so far" in saved[kind]
    assert saved[saved_output.MIME]["cost"]["total"] == 1.5


def test_pages_are_told_a_new_price_and_the_cost_at_the_end() -> None:
    told: list[dict] = []
    model = RunModel("sky", [0], "p")
    model.cost = lambda: cost(1.0, 2.0)
    feed = Feed(model, "v", 1, lambda content, buffers: told.append(content))
    assert feed.open()["cost"]["hourly"] == 2.0

    def say(text: str) -> None:
        feed.on_event(OutputEvent("r", 0, {"kind": "stream", "name": "stdout", "text": text, "seq": 0}))
        before = len(told)
        while len(told) == before:
            time.sleep(0.01)

    say("a\n")
    assert "cost" not in told[-1]
    model.cost = lambda: cost(1.0, 3.0)
    say("b\n")
    assert told[-1]["cost"]["hourly"] == 3.0
    say("c\n")
    assert "cost" not in told[-1]
    model.cost = lambda: cost(4.0, 3.0)
    model.finish(1.0)
    feed.finish()
    assert told[-1]["entries"][-1][2]["total"] == 4.0


def test_a_terminals_header_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    view = ConsoleRunView("sky", [0], results=True)
    assert "$" not in view._header(1.0, finished=False).plain
    view.cost = lambda: cost(1.5, 13.2)
    assert view._header(1.0, finished=False).plain.endswith("running · $1.50 so far, $13.20 an hour")


def test_a_view_is_told_of_the_cost_where_it_has_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_run_view", lambda *args, **more: made)
    made = RunModel("sky", [0])
    assert views.run_view("sky", [0], cost=lambda: cost(1.0, 1.0)) is made
    assert made.cost is not None


def test_the_panel_says_what_a_pool_costs() -> None:
    pool = {"name": "p", "current": True, "about": "2 cloud nodes", "state": "ready", "why": "", "uptime": 5.0}
    rest = {"away": {}, "apart": {}, "runs": [], "nodes": [], "phases": [], "world_size": 2}
    text = pool_panel.to_text({**pool, **rest, "cost": to_json(cost(1.5, 13.2))})
    assert text == "pool p (current): 2 cloud nodes, ready, up 5.0 s, $1.50 so far, $13.20 an hour"
    assert pool_panel.to_text({**pool, **rest, "cost": None}).endswith("up 5.0 s")
