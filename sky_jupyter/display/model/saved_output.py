"""A run as JSON, for the saved notebook and for pages opened while it runs.

The labextension draws it, with the same tabs during the run and in a notebook without a kernel. Equal rich items are
stored once, and a picture that the HTML shows is stored only there.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

from . import run_html
from .run_html import State
from .run_model import RankState, RunModel, RunState
from .transcript import Rich

MIME = "application/vnd.sky.run.v1+json"
VERSION = 1
# Most characters of text in all forms of a bundle together, without pictures.
MOST_TEXT = 1_000_000
_LINES = (1000, 500, 250, 100, 50, 20, 5)
# Types that the HTML shows; labextension/src/run/pictures.ts has the same.
_PICTURES = ("image/png", "image/jpeg", "image/gif")
_PICTURE = re.compile(r'src="data:(image/(?:png|jpeg|gif));base64,([A-Za-z0-9+/=]+)"')
# Tried first if more is asked for; views keep no more lines.
_MANY_LINES = (10_000, 5000, 2000)


def run_state(states: Iterable[State], *, finished: bool) -> State:
    """Return the state of a run as a whole."""
    found = set(states)
    goes_on = not finished or "running" in found
    return next((state for state in run_html.TROUBLES if state in found), "running" if goes_on else "done")


def to_json(state: RunState, view: str) -> dict[str, Any]:
    """Return a run as a JSON value; ``view`` is the id by which a page asks for more."""
    items = _Items()
    ranks = [_rank(rank, items) for rank in state.ranks]
    # Fields that older pages do not know are left out if they are empty.
    unseen = [{"rank": one.rank, "state": one.state, **_ended(one)} for one in state.unseen]
    every = [*(rank.view for rank in state.ranks), *state.unseen]
    return {
        "version": VERSION,
        "view": view,
        "run": state.run,
        "pool": state.pool,
        "title": state.title,
        "state": run_state([view.state for view in every], finished=state.finished),
        "finished": state.finished,
        "elapsed": round(state.elapsed, 3),
        "idle": round(state.idle, 3),
        "ranks": ranks,
        "items": items.kept,
        "order": [number for turn in state.order for number in turn],
        "notices": list(state.notices),
        **({"unseen": unseen} if unseen else {}),
        **({"outliving": dataclasses.asdict(state.outliving)} if state.outliving else {}),
        **({"cost": state.cost} if state.cost else {}),
    }


def bundle(model: RunModel, view: str, most_text: int | None = None) -> dict[str, Any]:
    """Return a run in all forms that a saved notebook keeps.

    ``view`` is the id of its view. ``most_text`` limits the characters of all forms together, without pictures: as many
    of the last lines are kept as fit. The default is the model's limit.
    """
    done = _forms(model, view, most_text)
    return {**done, MIME: _without_pictures(done[MIME], done["text/html"])}


def last(model: RunModel, view: str) -> dict[str, Any]:
    """Return the JSON of `bundle` with all pictures, for a page that gets no HTML."""
    whole: dict[str, Any] = _forms(model, view, None)[MIME]
    return whole


def _without_pictures(run: dict[str, Any], page: str) -> dict[str, Any]:
    """Replace pictures by their numbers in the HTML: the notebook holds each once."""
    numbers: dict[tuple[str, str], int] = {}
    for number, found in enumerate(_PICTURE.finditer(page)):
        numbers.setdefault((found[1], found[2]), number)
    items = []
    for item in run["items"]:
        data = dict(item["data"])
        for kind in filter(data.__contains__, _PICTURES):
            text = "".join(data[kind].split()) if isinstance(data[kind], str) else ""
            if (kind, text) in numbers:
                data[kind] = {"html": numbers[kind, text]}
        items.append({**item, "data": data})
    return {**run, "items": items}


def _forms(model: RunModel, view: str, most_text: int | None) -> dict[str, Any]:
    done: dict[str, Any] = {}
    most_text = next(most for most in (most_text, model.most_text, MOST_TEXT) if most is not None)
    for lines in (*(_MANY_LINES if most_text > MOST_TEXT else ()), *_LINES):
        whole = to_json(model.state(lines), view)
        texts = sum(len(part.get("text", "")) for rank in whole["ranks"] for part in rank["parts"])
        texts += sum(len(rank.get("traceback", "")) for rank in whole["ranks"])
        if texts > most_text and lines != _LINES[-1]:
            # With very many ranks, the JSON alone shows that it is too much; the other forms are not made.
            continue
        shown = model.snapshot(lines)
        done = {
            MIME: whole,
            "text/html": run_html.to_html(shown, lines),
            "text/plain": run_html.to_text(shown, lines, colours=False),
        }
        if texts + sum(len(done[kind]) for kind in ("text/html", "text/plain")) - _pictures(shown) <= most_text:
            break
    return done


def _pictures(shown: run_html.RunViewModel) -> int:
    """Return about how many characters of a view's HTML are rich items."""
    richs = [part for view in shown.ranks for part in (*view.segments, view.result) if isinstance(part, Rich)]
    return sum(len(value) for rich in richs for value in rich.data.values() if isinstance(value, str))


def _rank(rank: RankState, items: _Items) -> dict[str, Any]:
    view = rank.view
    parts: list[dict[str, Any]] = []
    for part in rank.parts:
        if part.rich is None:
            parts.append({"text": part.text})
        else:
            parts.append({"item": items.add(part.rich), **({"ids": list(part.ids)} if part.ids else {})})
    done: dict[str, Any] = {"rank": view.rank, "state": view.state, "parts": parts}
    done |= {name: value for name, value in _told(rank).items() if value} | _ended(view)
    if view.result is not None:
        done["result"] = items.add(view.result)
    return done


def _told(rank: RankState) -> dict[str, Any]:
    """Return the fields that a page needs to append to a rank's output."""
    return {"dropped": rank.dropped, "stream": rank.stream, "next": rank.next}


def _ended(view: run_html.RankView) -> dict[str, Any]:
    """Return the fields on how a rank ended."""
    return {name: text for name, text in {"note": view.note, "traceback": view.traceback}.items() if text}


class _Items:
    """Rich items without duplicates."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}

    def add(self, rich: Rich) -> int:
        """Return the index of an item; add it if it is new."""
        item = {"data": dict(rich.data), "metadata": dict(rich.metadata)}
        text = json.dumps(item, sort_keys=True, default=str)
        place = self._places.setdefault(text, len(self.kept))
        if place == len(self.kept):
            self.kept.append(item)
        return place
