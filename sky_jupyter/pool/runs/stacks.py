"""Stacks of a pool's ranks: sampled by the agents, grouped and formatted here.

Nodes run the user's code, so their answers are validated.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...node.kernel.stack_dump import CELL, MAX_FRAMES, Frame, cell_file, clean
from ...node.protocol import rpc
from ...spec.pool_spec import PoolSpec
from ...util.text import rank_label
from ...util.validate import is_number
from ..base.run_timeline import EventLog
from ..base.timeouts import TIMEOUTS
from ..control.control_client import Control
from .run import Run

WINDOW = TIMEOUTS.answers.stack_window
WITHIN = TIMEOUTS.answers.stacks
# The margin for the network, and one per rank, as all ranks may be on one busy machine. Nodes that do not answer get
# only the first.
_MARGIN, _MARGIN_EACH = TIMEOUTS.answers.stacks_margin, TIMEOUTS.answers.stacks_margin_each
_MOST_MARGIN = TIMEOUTS.answers.stacks_most_margin
_SHOWN = 14
_NATIVE_SHOWN = 4
_SOURCE = 60
# A waiting rank uses less than this share of a core; its other threads may send heartbeats.
IDLE = 0.1
_LIBRARY = re.compile(
    r"(\A|/)(site-packages|dist-packages|python3\.\d+|sky_jupyter)/|\A<(?!ipython-input-)|\.so[.\d]*\Z"
)
_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
# Files of the project and scripts that were sent: each node has a folder for them.
_SENT = re.compile(r"\A.*/sky-[0-9a-f]+-\w+/code/")
# Code of the notebook's own cells, pickled by value.
_NOTEBOOK = re.compile(r"(\A|/)ipykernel_\d+/\d+\.py\Z|\A<ipython-input-[^/]*>\Z")
_FUTEX = "futex"


@dataclass(frozen=True)
class CellSource:
    """Number and text of the running cell, to show its lines."""

    count: int = 0
    text: str = ""

    def holds(self, frame: Frame) -> bool:
        """Return whether a frame is in this cell, on any machine."""
        match = CELL.search(frame[0])
        return match is not None and match[0] == self._name

    @functools.cached_property
    def _name(self) -> str:
        match = CELL.search(cell_file(self.text, self.count))
        return match[0] if match is not None and self.text else ""

    def line(self, frame: Frame) -> str:
        """Return the source of a frame in this cell, shortened, or ""."""
        if not self.holds(frame):
            return ""
        # IPython strips leading empty lines, and does not count them.
        lines = re.sub(r"\A(?:[^\S\n]*\n)+", "", self.text).splitlines()
        if not 0 < frame[1] <= len(lines):
            return ""
        text = clean(lines[frame[1] - 1].strip())
        return text if len(text) <= _SOURCE else text[: _SOURCE - 1] + "…"


@dataclass(frozen=True)
class RankStack:
    """State and stack of one rank.

    Parameters
    ----------
    doing : str
        ``"waits"`` (in a collective), ``"runs"``, or no work: ``"idle"``, ``"finished"``, ``"failed"``,
        ``"absent"`` (from the run), ``"gone"`` (its kernel) or ``"silent"`` (its agent).
    frames : tuple of (str, int, str)
        File, line, function: innermost first, up to the outermost of the user's code.
    native : tuple of (str, str)
        Library and function of the C frames inside the innermost Python frame, if known.
    call : str
        Name of the collective that it waits in; "" if only its line is known.
    cpu, main : float
        Share of a core that its process, and its main thread, used between the samples.
    ran, switches : tuple of float
        CPU seconds and voluntary context switches of its main thread, at the first and the second sample.
    note : str
        An obstacle to sampling, such as that it is stopped.
    """

    rank: int
    doing: str
    frames: tuple[Frame, ...] = ()
    native: tuple[tuple[str, str], ...] = ()
    native_note: str = ""
    call: str = ""
    cpu: float = 0.0
    main: float = 0.0
    ran: tuple[float, float] = (0.0, 0.0)
    switches: tuple[float, float] = (0.0, 0.0)
    note: str = ""
    sleeps: bool = False
    computes: bool = False
    loops: bool = False
    accelerated: bool = False

    @property
    def own(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return next((frame for frame in self.frames if not _LIBRARY.search(frame[0])), None)

    @property
    def works(self) -> bool:
        """Whether it works on a run."""
        return self.doing in ("waits", "runs")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.note.startswith(_STOPPED)

    def what(self, code: CellSource) -> str:
        """Describe what it does, as in "waits in all_reduce (line 14)"."""
        if not self.works:
            return f"{_STATES[self.doing]}{self.note}"
        own = self.own
        if self.is_stopped:
            return f"is {self.note}{f' in {_spot(own)}' if own else ''}"
        if not self.frames:
            return "is at work, but its stack is not known"
        if own is None:
            return "waits in the event loop (await)" if self.loops else "is in Python's or the kernel's own code"
        # A line of the running cell is preferred to one of an earlier cell that it called.
        spot = _spot(next((frame for frame in self.frames if code.holds(frame)), own))
        if self.doing == "waits" and self.call:
            return f"waits in {self.call} ({spot})"
        source = code.line(own)
        if self.doing == "waits":
            return f"waits at `{source}` ({spot})" if source else f"waits in {own[2]} ({spot})"
        verb = "sleeps" if self.sleeps else "computes" if self.computes else "is"
        if own[2] != "<module>":
            return f"{verb} in {own[2]} ({spot})"
        return f"{verb} at `{source}` ({spot})" if source else f"{verb} at {spot}"


_STOPPED = "stopped"
_STATES = {
    "idle": "is idle",
    "finished": "has finished the cell",
    "failed": "has failed in the cell",
    "absent": "does not take part",
    "gone": "has no kernel: it has ended, or is being replaced",
    "silent": "is on a node whose agent did not answer",
}


@dataclass(frozen=True)
class StackGroup:
    """Ranks with equal stacks, or of equal state; ``elsewhere`` for a smaller group."""

    places: tuple[RankStack, ...]
    elsewhere: bool = False

    @property
    def ranks(self) -> list[int]:
        return [place.rank for place in self.places]


@dataclass(frozen=True)
class StackReport:
    """Stacks of a pool's ranks; ``str(where)`` and the repr are its text."""

    places: tuple[RankStack, ...]
    code: CellSource = field(default_factory=CellSource)
    title: str = ""

    @property
    def groups(self) -> list[StackGroup]:
        """The ranks by equal stacks: working ones first, by size."""
        by_key: dict[Any, list[RankStack]] = {}
        for place in self.places:
            frames = tuple((_on_any_node(file), *more) for file, *more in place.frames)
            key = (place.doing, place.call, place.note, frames) if place.works else (place.doing,)
            by_key.setdefault(key, []).append(place)
        found = sorted(
            by_key.values(),
            key=lambda places: (not places[0].works, -len(places), places[0].doing != "waits", places[0].rank),
        )
        together = found and found[0][0].works
        return [
            StackGroup(tuple(places), bool(together and index and places[0].works))
            for index, places in enumerate(found)
        ]

    def summary(self) -> str:
        """Return a one-line summary.

        For example, ``"ranks 0, 2-3 wait in psum (Cell In[5], line 14); rank 1 is in load_batch (line 9)"``.
        """
        by_text: dict[str, list[int]] = {}
        for group in self.groups:
            by_text.setdefault(group.places[0].what(self.code), []).extend(group.ranks)
        parts, cell = [], ""
        for text, ranks in by_text.items():
            match = _IN_CELL.search(text)
            # The cell is named only once.
            short = text.replace(f"({cell}, ", "(") if match and match[1] == cell else text
            cell = match[1] if match else cell
            parts.append(f"{rank_label(ranks)} {_agree(short, len(ranks))}")
        return "; ".join(parts)

    def __str__(self) -> str:
        return "\n".join([*([self.title] if self.title else []), *self._lines()])

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        for group in self.groups:
            place = group.places[0]
            mark = "elsewhere: " if group.elsewhere else ""
            yield f"{mark}{rank_label(group.ranks)} {_agree(place.what(self.code), len(group.ranks))}{_load(group)}"
            if place.works and place.note and not place.is_stopped:
                yield f"    {place.note}"
            if not place.works or place.loops:
                continue
            yield from _stack(place, self.code)
            named = next((item for item in group.places if item.native), place)
            if named.native:
                inner = " < ".join(
                    f"{_brief(function)} ({library})" for library, function in named.native[:_NATIVE_SHOWN]
                )
                yield f"    in C: {inner}"
            elif named.native_note and place.doing == "runs" and not place.sleeps:
                yield f"    perhaps in C code called from there; {named.native_note}"


_IN_CELL = re.compile(r"\((Cell In\[\d+\]), line \d+\)\Z")
_PLURAL = {
    "waits": "wait",
    "is": "are",
    "has": "have",
    "does": "do",
    "sleeps": "sleep",
    "computes": "compute",
}


def _agree(text: str, count: int) -> str:
    """Put the verb in the plural if there are several ranks."""
    verb, _, rest = text.partition(" ")
    return f"{_PLURAL.get(verb, verb)} {rest}" if count > 1 else text


def _load(group: StackGroup) -> str:
    """Return the CPU use of a group that works."""
    if not group.places[0].works or group.places[0].note:
        return ""
    used = [place.cpu for place in group.places]
    low, high = f"{min(used):.0%}", f"{max(used):.0%}"
    return ", no CPU used" if max(used) < IDLE / 5 else f", {low if low == high else f'{low} to {high}'} of a core"


def _spot(frame: Frame) -> str:
    match = CELL.search(frame[0])
    if match is not None:
        return f"Cell In[{match['count']}], line {frame[1]}"
    return f"{'the notebook' if _NOTEBOOK.search(frame[0]) else _on_any_node(frame[0])}:{frame[1]}"


def _on_any_node(file: str) -> str:
    """Return a file's path without what differs between nodes."""
    return _SENT.sub("", _INSTALLED.sub("", file))


def _brief(function: str) -> str:
    """Return a C++ function's name without its arguments and templates."""
    short = re.split(r"[<({]", function, maxsplit=1)[0].strip()
    return short or function[:40]


def _stack(place: RankStack, code: CellSource) -> Iterator[str]:
    """Yield a stack's lines, as in a traceback; the middle of a long one is left out."""
    frames = [(frame, len(list(equal))) for frame, equal in itertools.groupby(reversed(place.frames))]
    head = _SHOWN // 2 if len(frames) > _SHOWN else len(frames)
    tail = len(frames) - (_SHOWN - head) if len(frames) > _SHOWN else len(frames)
    for index, (frame, times) in enumerate(frames):
        if index == head and head < tail:
            yield f"    … {tail - head} more"
        if head <= index < tail:
            continue
        spot, function, source = _spot(frame), frame[2], code.line(frame)
        text = f"{spot}{'' if function == '<module>' else f' in {function}'}{f': {source}' if source else ''}"
        yield f"    {text}{f' ({times} times)' if times > 1 else ''}"


def note(log: EventLog, report: StackReport, per_node: int) -> None:
    """Note the stacks of ranks that are at work in a log, and which of them wait."""
    for group in report.groups:
        where = "\n".join(line.strip() for line in _stack(group.places[0], report.code))
        for place in group.places:
            if not place.works:
                continue
            node, what = place.rank // per_node, place.what(report.code)
            log.note("stack", what, rank=place.rank, node=node, where=where)
            if place.doing == "waits":
                log.waits(place.rank, node, what, where)
            else:
                log.works(place.rank)


# -- parsing ---------------------------------------------------------------------------------------


def read(
    spec: PoolSpec,
    answers: Mapping[int, Any],
    run: Run | None = None,
    statuses: Mapping[int, str] | None = None,
    waited: Mapping[int, float] | None = None,
) -> StackReport:
    """Parse the agents' answers; missing and malformed ones become ``silent``.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool.
    answers : mapping
        Node -> answer.
    run : Run, optional
        The current run; without one, ranks without work are ``idle``.
    statuses : mapping, optional
        Rank -> its outcome's status when the agents were asked.
    waited : mapping, optional
        Node -> timeout of its answer in seconds.

    Returns
    -------
    StackReport
        The stacks of all ranks.
    """
    known = [re.compile(expression) for plugin in spec.plugins for expression in plugin.collectives]
    code = CellSource(run.count, run.code) if run is not None else CellSource()
    places = []
    for rank in range(spec.world_size):
        node = rank // spec.ranks_per_node
        answer = answers.get(node)
        place = None
        if isinstance(answer, Mapping) and isinstance(answer.get("ranks"), Mapping):
            report = answer["ranks"].get(rank)
            if isinstance(report, Mapping):
                state = None if statuses is None else statuses.get(rank, "absent")
                place = _place(rank, report, known, state, bool(answer.get("accelerators")))
        seconds = (waited or {}).get(node)
        places.append(place or RankStack(rank, "silent", note="" if seconds is None else f" in {seconds:.1f} s"))
    return StackReport(tuple(places), code)


def _place(
    rank: int, report: Mapping[str, Any], known: Sequence[re.Pattern[str]], status: str | None, accelerated: bool
) -> RankStack:
    if not report.get("pid"):
        return RankStack(rank, "gone")
    if status == "absent" and not report.get("busy_with"):
        return RankStack(rank, "absent")
    if status not in (None, "absent", "running"):
        return RankStack(rank, "finished" if status == "ok" else "failed")
    if not report.get("busy_with"):
        return RankStack(rank, "idle" if status is None else "finished")
    frames = tuple(_frames(report.get("frames")))
    native = tuple(_native(report.get("native")))
    cpu, main = _number(report.get("cpu")), _number(report.get("main_cpu"))
    waits_in = clean(report.get("waits_in", ""))
    place = RankStack(
        rank,
        "runs",
        frames,
        native,
        clean(report.get("native_note", "")),
        cpu=cpu,
        main=main,
        ran=_pair(report.get("ran")),
        switches=_pair(report.get("switches")),
        note=clean(report.get("note", "")),
        # Python 3.10 sleeps in select.
        sleeps="nanosleep" in waits_in or any(function == "time_sleep" for _, function in native),
        computes=report.get("state") == "R" or cpu > 1 - IDLE,
        loops=report.get("at") == "loop",
        accelerated=accelerated,
    )
    call = None if place.loops or place.note else _collective(place, known, cpu, main, waits_in)
    return place if call is None else replace(place, doing="waits", call=call)


def _collective(
    place: RankStack, known: Sequence[re.Pattern[str]], cpu: float, main: float, waits_in: str
) -> str | None:
    """Return the collective that a rank waits in; None if in none.

    The name is "" if it is not known.
    """
    found = _matched(place, known)
    named = next((match["call"] for match in found if match.groupdict().get("call")), "")
    if named and main < 0.5:
        # Other threads of it may compute what it waits for.
        return named
    if cpu >= IDLE:
        return None
    if found:
        return ""
    # Compiled code of a framework has no frame of its own and waits for another thread; Python's own waits have a
    # frame.
    direct = bool(known) and place.own is not None and place.frames[0] == place.own and not place.native
    return "" if direct and _FUTEX in waits_in else None


def _matched(place: RankStack, known: Sequence[re.Pattern[str]]) -> list[re.Match[str]]:
    """Return the matches in frames that the user's code called, the outermost first."""
    spots = []
    for file, _, function in place.frames:
        if not _LIBRARY.search(file):
            break
        spots.append(f"{file}:{function}")
    spots = [*reversed(spots), *(f"{library}:{function}" for library, function in reversed(place.native))]
    return [match for spot in spots for pattern in known if (match := pattern.search(spot))]


def _number(value: Any) -> float:
    return float(value) if is_number(value, -1e12, 1e12) else 0.0


def _pair(value: Any) -> tuple[float, float]:
    good = isinstance(value, (list, tuple)) and len(value) == 2
    return (_number(value[0]), _number(value[1])) if good else (0.0, 0.0)


def _frames(value: Any) -> Iterator[Frame]:
    for item in value[:MAX_FRAMES] if isinstance(value, (list, tuple)) else ():
        if isinstance(item, (list, tuple)) and len(item) == 3 and isinstance(item[1], int):
            yield clean(item[0]), max(0, min(item[1], 1 << 31)), clean(item[2])


def _native(value: Any) -> Iterator[tuple[str, str]]:
    for item in value[:MAX_FRAMES] if isinstance(value, (list, tuple)) else ():
        if isinstance(item, (list, tuple)) and len(item) == 2:
            yield clean(item[0]), clean(item[1])


# -- sampling --------------------------------------------------------------------------------------


async def ask(
    control: Control,
    spec: PoolSpec,
    run: Run | None = None,
    *,
    native: bool = True,
    window: float = WINDOW,
    within: float = WITHIN,
) -> StackReport:
    """Sample the stacks of all ranks, by one call per agent.

    The calls are independent: an agent that does not answer delays no other.

    Parameters
    ----------
    control : Control
        Client of the agents.
    spec : PoolSpec
        Spec of the pool.
    run : Run, optional
        The current run; it distinguishes finished ranks from idle ones, and has the cell's source.
    native : bool
        Whether to name C functions, which suspends a process for a moment.
    window : float
        Seconds between the two samples.
    within : float
        Timeout in seconds; ranks without an answer by then have no stack in the report.

    Returns
    -------
    StackReport
        The stacks.
    """
    known = [expression for plugin in spec.plugins for expression in plugin.collectives]
    arguments = {"native": native, "known": known, "window": window, "within": within}

    patient = min(_MARGIN + _MARGIN_EACH * spec.world_size, _MOST_MARGIN)
    waits = {node: within + (patient if node in control.there else _MARGIN) for node in range(spec.nodes)}

    async def one(node: int) -> tuple[int, Any]:
        try:
            answer = await asyncio.wait_for(control.ask(rpc.SAMPLE_STACKS, [node], **arguments), waits[node])
        except Exception:
            # The other nodes' answers are shown; the agent's own log has the error.
            return node, None
        return node, answer[node]

    answers = dict(await asyncio.gather(*(one(node) for node in range(spec.nodes))))
    statuses = None if run is None else {rank: outcome.status for rank, outcome in run.outcomes.items()}
    report = read(spec, answers, run, statuses, waits)
    if run is not None:
        note(run.events, report, spec.ranks_per_node)
    return report
