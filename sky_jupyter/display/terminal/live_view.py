"""Views for a person at a terminal: lines scroll above a row per rank or phase.

`rich` formats the rows; `bottom_rows` places them. rich's own live display moves the cursor back by a count of rows,
which is wrong after a terminal has been made narrower.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...pool.base.events import Event, NoticeEvent, OutputEvent, ProgressEvent
from ...util.pool_cost import PoolCost, TimeLeft
from ...util.text import cleaned, rank_label
from ..model import ansi, progress_bars, run_html
from ..model.folding import fold
from ..model.run_html import RankView, RunViewModel, State, duration, pace
from ..model.run_model import StartModel, ended
from ..model.saved_output import run_state
from .bottom_rows import Region
from .line_view import TerminalRunView

HostFacts = Callable[[], Sequence[Mapping[str, Any]]]
# Seconds before anything is drawn; a faster operation draws nothing.
_PATIENCE = 0.3
# Seconds between two drawings, with changes and without.
_INTERVAL, _CLOCK = 0.1, 0.5
# Seconds from which on silence is mentioned.
_SILENT = 5.0
_BAR = 20
_MORE = "and more"
# The width at which every row is complete.
_WHOLE = 10_000
_COLOURS = {"running": "blue", "done": "green", "failed": "red", "died": "red", "interrupted": "yellow", "on": "blue"}
_COLOURS["timed out"] = "yellow"


class _Row(NamedTuple):
    """Row of a rank; equal ones are drawn once."""

    state: State
    text: str


class ConsoleRunView(TerminalRunView):
    """View of one run; made by `display.run_view`, ends with the run."""

    def __init__(self, title: str, ranks: Sequence[int], *, results: bool, unseen: Sequence[int] = ()) -> None:
        super().__init__(ranks, results=results)
        self._title = title
        self._unseen = frozenset(unseen)
        self.began = self._heard = time.perf_counter()
        self._states: dict[int, dict[str, Any]] = {rank: {"state": "running"} for rank in (*ranks, *unseen)}
        self._region = Region(sys.stdout)
        self._drawn = 0.0
        self._news = False
        # Returns what the pool costs, or how long it may be used; None if nothing is bought, and the pool has no end.
        self.cost: Callable[[], PoolCost | TimeLeft | None] | None = None

    def on_event(self, event: Event) -> None:
        """Handle an event of the run; callable from any thread."""
        super().on_event(event)
        self._news = True
        if isinstance(event, OutputEvent) and event.rank in self._states:
            self._heard = time.perf_counter()
            if event.event["kind"] == "end":
                self._states[event.rank] = ended(event.event)

    def refresh(self) -> None:
        """Print what is new, and draw the ranks' states; main thread only."""
        now = time.perf_counter()
        lines, notices = self._take_due(finished=False)
        due = now - self._drawn >= (_INTERVAL if self._news else _CLOCK)
        if now - self.began < _PATIENCE or not self._region.room:
            self._tell(lines, notices, ())
        elif lines or notices or due:
            self._drawn, self._news = now, False
            self._tell(lines, notices, self._rows(now))

    def finish(self, elapsed: float) -> None:
        """Print the rest; if rows were drawn, the header and failed ranks' rows stay."""
        with self._lock:
            for lines in self._ranks.values():
                lines.close()
        try:
            while any(lines.queue for lines in self._ranks.values()):
                self._tell(*self._take_due(finished=True), ())
            self._tell(*self._take_due(finished=True), ())
        finally:
            # In any case: an interrupt during the last lines leaves the terminal as it was.
            self._region.hide()
        if self._drawn:
            rows = [self._header(elapsed, finished=True), *self._columns(self._troubled())]
            self._region.show((), "".join(f"{row}\n" for row in draw(rows, _WHOLE)))

    def _tell(self, lines: str, notices: Sequence[str], rows: Sequence[str]) -> None:
        self._region.show(rows, lines)
        for text in notices:
            # If standard error is the terminal, this goes above the rows at the next drawing.
            print(text, file=sys.stderr)

    def _rows(self, now: float) -> list[str]:
        silent = now - self._heard
        header = self._header(now - self.began, finished=False)
        if silent >= _SILENT:
            header.append(f" · silent for {duration(float(int(silent))).replace('.0 s', ' s')}", style="yellow")
        return draw([header, *self._columns(self._fitting())], self._region.size.columns - 1)

    def _header(self, elapsed: float, *, finished: bool) -> Text:
        every = [RankView(rank, state=told["state"]) for rank, told in self._states.items()]
        state = run_state([view.state for view in every], finished=finished)
        ranks = tuple(view for view in every if view.rank not in self._unseen)
        unseen = tuple(view for view in every if view.rank in self._unseen)
        cost = self.cost() if self.cost is not None else None
        price = "" if cost is None else str(cost)
        said = run_html.header(RunViewModel(self._title, elapsed, ranks, finished, unseen=unseen, cost=price))
        return Text().append("● ", _COLOURS[state]).append(" · ".join(said), "bold")

    def _fitting(self) -> list[tuple[list[int], _Row]]:
        """Return a row for each different rank that fits; drop the successful ones first."""
        rows, room = self._folded(), self._region.room
        if len(self._states) == 1:
            # Its last line is directly above.
            return [row for row in rows if row[1].state == "running" and self._ranks[row[0][0]].open.strip()]
        if len(rows) <= room:
            return rows
        order = (*run_html.TROUBLES, "running", "done")
        kept = sorted(sorted(rows, key=lambda row: order.index(row[1].state))[: room - 1])
        return [*kept, (sorted(rank for row in rows if row not in kept for rank in row[0]), _Row("running", _MORE))]

    def _troubled(self) -> list[tuple[list[int], _Row]]:
        """Return the rows of ranks that stay visible at the end."""
        several = len(self._states) > 1
        return [row for row in self._folded() if row[1].state not in ("running", "done") and (several or row[1].text)]

    def _folded(self) -> list[tuple[list[int], _Row]]:
        with self._lock:
            told = dict(self._states)
            seen = {rank for rank in told if rank not in self._unseen or told[rank]["state"] in run_html.TROUBLES}
            return fold({rank: self._row(rank, told[rank]) for rank in told if rank in seen})

    def _row(self, rank: int, told: dict[str, Any]) -> _Row:
        state = told["state"]
        if state == "running":
            lines = self._ranks[rank]
            return _Row(state, ansi.strip(lines.open if lines.open.strip() else lines.last))
        raised = ansi.strip(told["traceback"]).strip().splitlines()
        return _Row(state, told["note"] or (raised[-1] if raised else ""))

    def _columns(self, rows: Sequence[tuple[list[int], _Row]]) -> list[Text]:
        several = len(self._states) > 1
        return columns(
            [
                (
                    f"  {rank_label(ranks)}" if several else " ",
                    Text() if row.text == _MORE else _dot(row.state, "" if row.state == "running" else row.state),
                    row.text,
                )
                for ranks, row in rows
            ]
        )


class ConsoleStartView:
    """View of a start or transfer: its phases with their durations.

    Parameters
    ----------
    title : str
        Title, such as the pool's name.
    phases : callable, optional
        Returns the phases of a pool's start, as `PhaseLog.facts` does.
    """

    def __init__(self, title: str, phases: HostFacts | None = None) -> None:
        self.title, self._phases = title, phases
        self.began = time.perf_counter()
        self._model = StartModel()
        self._region = Region(sys.stderr)
        self._notices: list[str] = []
        self._progress: ProgressEvent | None = None
        self._now = ""
        self._drawn = 0.0

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        text = self._model.on_event(event)
        if isinstance(event, NoticeEvent):
            # Problems stay visible too: lines above the rows scroll, but are not removed.
            self._notices += [text] * bool(text)
            return
        self._progress = event if isinstance(event, ProgressEvent) else None
        self._now = text or self._now

    def refresh(self) -> None:
        """Draw what is new; main thread only."""
        now = time.perf_counter()
        notices, self._notices = self._notices, []
        above = "".join(f"{self.title} · {text}\n" for text in notices)
        drawn = now - self.began >= _PATIENCE and self._now and self._region.room
        if above or now - self._drawn >= _INTERVAL:
            self._drawn = now
            self._region.show(self._rows() if drawn else (), above)

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Show that the pool is ready, or why not; after a failure, also the phases."""
        notices = "".join(f"{self.title} · {text}\n" for text in self._notices)
        self._region.show((), notices)
        self._region.hide()
        rows = [self._header(f"{ready} · {self._elapsed()}", "done" if ok else "failed")]
        if not ok:
            rows += columns(self._told())
        self._region.show((), "".join(f"{row}\n" for row in draw(rows, _WHOLE)))

    def _rows(self) -> list[str]:
        told, progress = self._told(), self._progress
        if progress is not None:
            part = min(1.0, progress.there / max(1, progress.total))
            rows = [self._header(self._elapsed(), "running"), Text("  ").append(_bar(part)).append(f" {progress.text}")]
        elif told:
            rows = [self._header(f"starting · {self._elapsed()}", "running")]
        else:
            rows = [self._header(f"{self._now} · {self._elapsed()}", "running")]
        return draw([*rows, *columns(told[-self._region.room :])], self._region.size.columns - 1)

    def _elapsed(self) -> str:
        return duration(time.perf_counter() - self.began)

    def _header(self, text: str, state: State) -> Text:
        return Text().append("● ", _COLOURS[state]).append(f"{self.title} · {text}", "bold")

    def _told(self) -> list[tuple[str, Text, str]]:
        """Return name, state, duration and text of each phase.

        Nodes of the current phases have rows too.
        """
        found = []
        for phase in self._phases() if self._phases is not None else ():
            is_over = phase["state"] == "done"
            line = "" if is_over else (phase["lines"] or [""])[-1]
            # The nodes' own lines show their progress.
            nodes = [] if is_over else phase.get("nodes", ())
            found.append((f"  {phase['phase']}", _dot(phase["state"], _pace(phase)), "" if nodes else line))
            for node in nodes:
                taken = _dot(node["state"], duration(node["elapsed"]))
                found.append((f"    node {node['node']}", taken, node["line"]))
        return found


def draw(rows: Sequence[Text], width: int) -> list[str]:
    """Return rows with the terminal's colours, none wider than ``width``."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as drawn:
        for row in rows:
            row.truncate(width, overflow="ellipsis")
            console.print(row, no_wrap=True)
    return drawn.get().splitlines()


def columns(rows: Sequence[tuple[str, Text, str]]) -> list[Text]:
    """Return rows of rank, state and text; the text may be a progress bar."""
    first = max((cell_len(who) for who, _, _ in rows), default=0)
    second = max((state.cell_len for _, state, _ in rows), default=0)
    done = []
    for who, state, line in rows:
        row = Text(who + " " * (first - cell_len(who) + 2)).append(state)
        if line:
            row.append(" " * (second - state.cell_len + 2)).append(_content(line))
        done.append(row)
    return done


def _content(line: str) -> Text:
    bar = progress_bars.of_line(line)
    if bar is None:
        return Text(ansi.strip(cleaned(line)).replace("\t", " "))
    return Text(f"{bar.label} " if bar.label else "").append(_bar(bar.part)).append(f" {bar.done} {bar.aside}")


def _bar(part: float) -> Text:
    full = round(_BAR * part)
    # The two can be distinguished without colours too.
    return Text("━" * full, "blue").append("─" * (_BAR - full), "bright_black")


def _dot(state: str, word: str) -> Text:
    return Text().append("●", _COLOURS[state]).append(f" {word}" if word else "")


def _pace(phase: Mapping[str, Any]) -> str:
    """Format how long a phase took, or has taken of what is usual."""
    taken = duration(phase["elapsed"])
    usual = phase["usual"] if phase["state"] == "on" else None
    return pace(phase["elapsed"], usual) if usual else taken
