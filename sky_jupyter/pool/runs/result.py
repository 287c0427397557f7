"""Results of a run in the notebook: `CellResult` and `CellError`."""

from __future__ import annotations

import base64
import pickle
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from ...errors import OwnTraceback, PoolError, RankDied, SkyError
from ...node.protocol.journal_events import gap_text
from ...node.serialization.unpicklable_placeholders import RemoteRepr
from ...util.text import format_size, plain, rank_label
from ..base.run_timeline import EventLog, EventRow, table
from . import remote_exceptions
from .output_cache import MOST, Printed

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
else:
    from exceptiongroup import ExceptionGroup

# Length of a rank's error in a headline.
_MOST_CAUSE = 200
# Differences between equal failures of ranks: addresses of objects, and ports.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|(?<=\]):\d{2,5}\b|(?<=\d\.\d\.\d\.\d):\d{2,5}\b")
# How frameworks and Python say that a connection's other end is gone.
_LOST = re.compile(
    r"connection (reset|closed|refused|aborted|lost|to)|closed by (the )?(remote )?peer|broken ?pipe|ConnectionError"
    r"|Connection(Reset|Refused|Aborted)|gloo|nccl|heartbeat|coordination service|socket closed|peer (is )?gone",
    re.IGNORECASE,
)
# JAX's message when it ends all processes because that of the coordinator is gone.
_ABORTED = re.compile(r"distributed service detected fatal errors")
# Messages of torch and JAX when memory is exhausted; JAX's class has had several names.
_NO_MEMORY = re.compile(
    r"\AOutOfMemoryError: |RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|allocat)|DefaultCPUAllocator: can't allocate"
)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


class RankInterrupted(SkyError):
    """Raised for a rank that the user, or another's failure, stopped."""


class TimedOut(RankInterrupted, TimeoutError):
    """Raised for a rank that was interrupted after its time limit."""


class ValueNotHere(SkyError):
    """Raised when a value cannot be fetched from its rank, or an item not be rebuilt."""


class ValueSource(Protocol):
    """Access to values that are still on their ranks."""

    def bring(self, ranks: Sequence[int]) -> tuple[Mapping[int, Any], Mapping[int, str]]:
        """Fetch ranks' values; return them, and why others are missing."""

    def text(self, rank: int) -> str | None:
        """Return the repr of a rank's value; None if not available soon."""

    def printed(self, rank: int, stream: str, before: int) -> str:
        """Return a rank's output before an event, or raise SkyError."""

    def hold(self) -> Callable[[], None]:
        """Keep the values on their ranks until the returned function is called."""


@dataclass
class Outcome:
    """State and end of a run on one rank; updated as events arrive.

    Parameters
    ----------
    rank, node : int
        The rank and its node.
    status : str
        ``running``, ``ok``, ``error``, ``interrupted``, ``died`` or ``lost``.
    end : dict
        The end event as the agent sent it.
    """

    rank: int
    node: int
    status: str = "running"
    end: dict[str, Any] = field(default_factory=dict)
    stdout: Printed = field(default_factory=Printed)
    stderr: Printed = field(default_factory=Printed)

    @property
    def failed(self) -> bool:
        """Whether the rank has ended, and not with ``ok``."""
        return self.status not in ("running", "ok")


class CellResult(Sequence[Any]):
    """Results of a run: a sequence with one value per rank, in rank order.

    It is made when a run ends; the notebook holds it as ``_sky`` or under the name given by ``--out``. A value over
    1 MB stays on its rank and is fetched once, on first access. A value that cannot be sent is a `RemoteRepr`.
    Accessing the value of a rank that failed raises that rank's error.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcome of each rank.
    elapsed : float
        Duration in seconds.
    source : ValueSource, optional
        Access to large values.
    run : str
        The run's id.
    holds : bool
        Whether the ranks keep large values while this object lives.
    events : EventLog, optional
        The log of what happened in it.
    """

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        elapsed: float,
        source: ValueSource | None = None,
        run: str = "",
        *,
        holds: bool = False,
        events: EventLog | None = None,
    ) -> None:
        self._outcomes = {outcome.rank: outcome for outcome in sorted(outcomes, key=lambda item: item.rank)}
        self._source = source
        self._values: dict[int, Any] = {}
        self._exceptions: dict[int, Exception] = {}
        # Two threads must not fetch the same value.
        self._lock = threading.RLock()
        self.elapsed = elapsed
        self.run = run
        self._events = EventLog(run) if events is None else events
        if holds and source is not None and any(map(self._is_away, self._outcomes)):
            # Not at the process's exit: a later notebook may fetch the values.
            weakref.finalize(self, source.hold()).atexit = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the run."""
        return tuple(self._outcomes)

    @property
    def values(self) -> list[Any]:
        """The values of the ranks that did not fail, in rank order."""
        return self._several([rank for rank, outcome in self._outcomes.items() if not outcome.failed])

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """How the run ended on each rank, as its errors read it."""
        return tuple(self._outcomes.values())

    @property
    def errors(self) -> Mapping[int, Exception]:
        """The exceptions of the failed ranks, by rank.

        Pickled exceptions are unpickled on first access.
        """
        return _Errors(self._exception, [rank for rank, outcome in self._outcomes.items() if outcome.failed])

    @property
    def events(self) -> Any:
        """The events of the run, by time, as a table.

        It is a DataFrame, or a list of dicts without pandas. `EventRow` describes the columns. Later events that the
        run causes, such as new kernels, are in the table when it is read again.
        """
        return table(self._events.rows())

    def event_rows(self) -> list[EventRow]:
        """Return the events of the run, by time, with or without pandas.

        Returns
        -------
        list of EventRow
            The rows of `events`.
        """
        return self._events.rows()

    def leaves(self) -> list[Exception]:
        """Return an exception for each failed rank; unpickle nothing.

        Each is caught by the same ``except`` clauses as the rank's own exception.

        Returns
        -------
        list of Exception
            In rank order.
        """
        return [self._leaf(rank) for rank, outcome in self._outcomes.items() if outcome.failed]

    @property
    def head(self) -> Any:
        """The value of the run's lowest rank."""
        return self.value(next(iter(self._outcomes)))

    def value(self, rank: int) -> Any:
        """Return the value of one rank.

        Parameters
        ----------
        rank : int
            The rank's number.

        Returns
        -------
        object
            The value; a `RemoteRepr` if it cannot be sent, or cannot be rebuilt here.

        Raises
        ------
        KeyError
            When the rank took no part in the run.
        ValueNotHere
            When the value is large, and its rank lost it or cannot be reached.
        Exception
            The rank's own error, if it failed.
        """
        if rank not in self._outcomes:
            raise KeyError(f"rank {rank} took no part in this run; it was on ranks {list(self._outcomes)}")
        if self._outcomes[rank].failed:
            raise self._exception(rank)
        with self._lock:
            if rank not in self._values:
                missing = self._bring([rank]) if self._is_away(rank) else {}
                if rank in missing:
                    kind = self._outcomes[rank].end.get("type")
                    raise ValueNotHere(f"the value of rank {rank} ({kind}) cannot be fetched: {missing[rank]}")
                if rank not in self._values:
                    self._values[rank] = self._load(rank)
            return self._values[rank]

    def stdout(self, rank: int) -> str:
        """Return what a rank printed to its standard output.

        The notebook keeps the newest 64 MB of a run; older output is read from the node's journal. A gap in the
        journal is shown as a line.

        Parameters
        ----------
        rank : int
            The rank's number.

        Returns
        -------
        str
            The text.
        """
        return self._printed(rank, "stdout")

    def stderr(self, rank: int) -> str:
        """Return what a rank printed to its standard error, as `stdout` does.

        Parameters
        ----------
        rank : int
            The rank's number.

        Returns
        -------
        str
            The text.
        """
        return self._printed(rank, "stderr")

    def _printed(self, rank: int, stream: str) -> str:
        kept: Printed = getattr(self._outcomes[rank], stream)
        if not kept.dropped:
            return "".join(kept)
        why = "it is not in this process"
        if self._source is not None:
            try:
                return self._source.printed(rank, stream, kept.first) + "".join(kept)
            except SkyError as error:
                why = str(error)
        return gap_text(
            kept.dropped, f"the notebook keeps the newest {format_size(MOST)} of a run, and {why}"
        ) + "".join(kept)

    def _is_away(self, rank: int) -> bool:
        """Return whether a value is only on its rank."""
        outcome = self._outcomes[rank]
        return outcome.status == "ok" and bool(outcome.end.get("large")) and rank not in self._values

    def _bring(self, ranks: Iterable[int]) -> Mapping[int, str]:
        """Fetch ranks' large values at once; return why some are missing."""
        with self._lock:
            away = [rank for rank in ranks if self._is_away(rank)]
            if not away:
                return {}
            if self._source is None:
                return dict.fromkeys(away, "it was not kept")
            values, missing = self._source.bring(away)
            self._values.update(values)
            return missing

    def _several(self, ranks: Sequence[int]) -> list[Any]:
        self._bring(ranks)
        return [self.value(rank) for rank in ranks]

    def _load(self, rank: int) -> Any:
        """Return a value that came with its run's end."""
        end = self._outcomes[rank].end
        kind = str(end.get("type"))
        if "unpicklable" in end:
            return RemoteRepr(end.get("repr") or f"<{kind} object>", kind, end["unpicklable"], rank)
        if "value" not in end:
            return None
        try:
            return pickle.loads(base64.b64decode(end["value"]))
        except Exception as error:
            text = self._source.text(rank) if self._source is not None else None
            why = f"it could not be rebuilt in the notebook: {type(error).__name__}: {error}"
            return RemoteRepr(text or f"<{kind} object>", kind, why, rank)

    def _leaf(self, rank: int) -> Exception:
        if rank in self._exceptions:
            return self._exceptions[rank]
        outcome = self._outcomes[rank]
        if outcome.status != "error" or remote_exceptions.exact(outcome.end.get("raised")) is not None:
            # The exact exception needs no unpickling.
            return self._exception(rank)
        error = _likeness(outcome)
        _note_origin(error, outcome)
        return error

    def _exception(self, rank: int) -> Exception:
        if rank not in self._exceptions:
            self._exceptions[rank] = exception_of(self._outcomes[rank])
        return self._exceptions[rank]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        try:
            ranks = self.ranks[index]
        except IndexError:
            ran = f"the cell ran on {rank_label(self.ranks)}"
            raise IndexError(f"there is no result {index}: {ran}, and results are counted from 0") from None
        return self._several(ranks) if isinstance(ranks, tuple) else self.value(ranks)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Any]:
        self._bring(self._outcomes)
        return (self.value(rank) for rank in self._outcomes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with all large values."""
        missing = self._bring(self._outcomes)
        if missing:
            rank = next(iter(missing))
            raise ValueNotHere(f"the value of rank {rank} cannot be fetched: {missing[rank]}")
        outcomes = {}
        for rank, outcome in self._outcomes.items():
            if not outcome.failed:
                # Loaded first: changes that were made to it here must be part of the state.
                self.value(rank)
            end = {name: part for name, part in outcome.end.items() if name not in ("value", "large")}
            outcomes[rank] = Outcome(rank, outcome.node, outcome.status, end, outcome.stdout, outcome.stderr)
        values = dict(sorted(self._values.items()))
        facts = {"elapsed": self.elapsed, "run": self.run, "_events": self._events}
        return {"_outcomes": outcomes, "_values": values, **facts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state.setdefault("_events", EventLog(state["run"]))
        vars(self).update(state, _source=None, _exceptions={}, _lock=threading.RLock())

    def __repr__(self) -> str:
        failed = [rank for rank, outcome in self._outcomes.items() if outcome.failed]
        state = f", failed on {failed}" if failed else ""
        return f"<CellResult of {len(self)} rank{'s' if len(self) != 1 else ''}, {self.elapsed:.2f} s{state}>"


def exception_of(outcome: Outcome) -> Exception:
    """Return the exception of a failed rank, of its own type if possible."""
    end, where = outcome.end, f"rank {outcome.rank} (node {outcome.node})"
    if outcome.status == "died":
        text = f"the process of {where} ended while the run was on it: {end.get('text', 'it is gone')}"
        tail = end.get("tail") or []
        return RankDied(text + "".join(f"\n  | {line}" for line in tail))
    if outcome.status == "lost" and end.get("unbegun"):
        return PoolError(f"the call was cancelled before a rank began it: {end.get('text')}")
    if outcome.status == "lost":
        return RankDied(f"{where} is lost: {end.get('text', 'its node does not answer')}")
    if outcome.status == "interrupted" and "timeout" in end:
        return TimedOut(f"{where} was stopped{end.get('why', '')}")
    if outcome.status == "interrupted":
        return RankInterrupted(f"{where} was {_interrupted(end)}")
    error: BaseException | None = remote_exceptions.exact(end.get("raised"))
    if error is None and end.get("exception"):
        try:
            error = pickle.loads(base64.b64decode(end["exception"]))
        except Exception:
            error = None
    if not isinstance(error, Exception):
        error = _likeness(outcome)
    _note_origin(error, outcome)
    return error


def _likeness(outcome: Outcome) -> Exception:
    return remote_exceptions.likeness(
        outcome.end.get("raised"), str(outcome.end.get("ename")), str(outcome.end.get("evalue"))
    )


def _note_origin(error: Exception, outcome: Outcome) -> None:
    where = f"rank {outcome.rank} (node {outcome.node})"
    _note(error, f"raised on {where}; there:\n" + plain("\n".join(outcome.end.get("traceback", []))))


class _Errors(Mapping[int, Exception]):
    """Exceptions of ranks, made on access."""

    def __init__(self, get: Callable[[int], Exception], ranks: Sequence[int]) -> None:
        self._get, self._ranks = get, tuple(ranks)

    def __getitem__(self, rank: int) -> Exception:
        if rank not in self._ranks:
            raise KeyError(rank)
        return self._get(rank)

    def __contains__(self, rank: object) -> bool:
        return rank in self._ranks

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        return repr(dict(self))


def _note(error: Exception, text: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]  # type: ignore[attr-defined]


class CellError(ExceptionGroup[Exception], SkyError, OwnTraceback):
    """Raised when ranks of a run failed; a group of their exceptions.

    ``except*`` catches them by type.

    Parameters
    ----------
    result : CellResult
        Results of the run.
    outcomes : sequence of Outcome
        Outcomes of its ranks.

    Attributes
    ----------
    result : CellResult
        Results of the run, with the other ranks' values.
    errors : mapping of int to Exception
        Each failed rank's exception.
    """

    result: CellResult
    what = "cell"
    _blocks: list[str]
    _above: str

    def __new__(cls, result: CellResult, outcomes: Sequence[Outcome]) -> CellError:
        failed = [outcome for outcome in outcomes if outcome.failed]
        self = super().__new__(cls, _headline(failed, len(result), cls.what), result.leaves())
        self.result = result
        self._blocks = _blocks(failed)
        # Above a traceback the error is left out: the traceback ends with it.
        self._above = _headline(failed, len(result), cls.what, raised_too=False)
        return self

    def __init__(self, result: CellResult, outcomes: Sequence[Outcome]) -> None:
        super().__init__(self.message, self.exceptions)

    def __reduce__(self) -> tuple[Any, ...]:
        # A group is copied by its message and exceptions, which are not the arguments here.
        return type(self), (self.result, self.result.outcomes)

    def __str__(self) -> str:
        return self.message

    def derive(self, excs: Sequence[Exception]) -> ExceptionGroup[Exception]:
        """Return a plain group, as `split` and ``except*`` use."""
        return ExceptionGroup(self.message, excs)

    @property
    def errors(self) -> Mapping[int, Exception]:
        """Each failed rank's exception, by rank."""
        return self.result.errors

    def _render_traceback_(self) -> list[str]:
        """Return IPython's traceback, equal ones once."""
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self._above}", *self._blocks]


def _headline(failed: Sequence[Outcome], total: int, what: str, *, raised_too: bool = True) -> str:
    """Return the failed ranks and the cause, in one line."""
    stopped = [outcome for outcome in failed if outcome.status == "interrupted"]
    if len(stopped) == len(failed):
        done = "timed out" if all("timeout" in outcome.end for outcome in stopped) else "was stopped"
        return f"the {what} {done} on {rank_label(outcome.rank for outcome in failed)} of {total}"
    # Ranks that were stopped or disconnected because of others are no causes.
    damaged = _damaged(failed)
    causes = [outcome for outcome in failed if outcome not in stopped and outcome not in damaged]
    ranks = [outcome.rank for outcome in causes]
    where = "its only rank" if total == 1 else f"all {total} ranks" if len(ranks) == total else rank_label(ranks)
    of = "" if len(ranks) == total else f" of {total}"
    after = ""
    if damaged:
        whose = "their" if len(damaged) > 1 else "its"
        after = f"; {rank_label(one.rank for one in damaged)} lost {whose} connection to it"
    why = f": {_cause(causes[0])}" if raised_too or causes[0].status != "error" else ""
    return f"the {what} failed on {where}{of}{why}{after}"


def _cause(outcome: Outcome) -> str:
    """Return why a rank failed, in one line."""
    end = outcome.end
    if outcome.status != "error":
        text = str(end.get("text") or "")
        first = text.partition("\n")[0] or "it is gone"
        return f"it was {first}" if first.startswith("killed") else first
    name, says = str(end.get("ename") or "an error"), str(end.get("evalue") or "").strip().partition("\n")[0]
    return _shortened(f"{name}: {says}" if says else name)


def _shortened(text: str) -> str:
    """Shorten a line for a headline."""
    return text if len(text) <= _MOST_CAUSE else f"{text[:_MOST_CAUSE]}…"


def _damaged(failed: Sequence[Outcome]) -> list[Outcome]:
    """Return the ranks that failed because another rank's process had ended.

    Their connections to it were closed.
    """
    if not any(outcome.status in ("died", "lost") for outcome in failed):
        return []
    ended = [outcome for outcome in failed if outcome.status == "died" and aborted(outcome.end)]
    if not any(outcome.status in ("died", "lost") and outcome not in ended for outcome in failed):
        ended = []
    errors = [outcome for outcome in failed if outcome.status == "error"]
    return ended + [one for one in errors if _LOST.search(f"{one.end.get('ename')}: {one.end.get('evalue')}")]


def aborted(end: Mapping[str, Any]) -> bool:
    """Return whether a framework ended a process because another was lost."""
    return any(_ABORTED.search(line) for line in end.get("tail") or ())


def _blocks(failed: Sequence[Outcome]) -> list[str]:
    groups: dict[str, list[Outcome]] = {}
    damaged = _damaged(failed)
    gone = rank_label(one.rank for one in failed if one.status in ("died", "lost") and one not in damaged)
    # Likely causes first, ranks that were stopped because of them last.
    order = {"died": 0, "lost": 0, "error": 1, "interrupted": 2}
    told: dict[str, str] = {}
    for outcome in sorted(failed, key=lambda item: (order[item.status], item.rank)):
        if outcome in damaged:
            what = "JAX ended its process too" if outcome.status == "died" else _cause(outcome)
            text = f"lost the connection to {gone}: {what}\n(in full: _sky.errors[{outcome.rank}])"
            key = "damaged"
        else:
            text = _told(outcome)
            key = _VARYING.sub("#", text)
        told.setdefault(key, text)
        groups.setdefault(key, []).append(outcome)
    blocks = []
    for key, outcomes in groups.items():
        label = rank_label([outcome.rank for outcome in outcomes])
        blocks.append(f"\x1b[1m── {label} {'─' * max(3, 60 - len(label))}\x1b[22m\n{told[key]}")
    return blocks


def _interrupted(end: Mapping[str, Any]) -> str:
    """Describe an interrupted rank: why, and in which call if known."""
    if end.get("at"):
        return f"interrupted while {end['at']}{end.get('why', '')}"
    # The message of a KeyboardInterrupt that user code raised.
    own = end.get("evalue") if end.get("ename") == "KeyboardInterrupt" else ""
    return f"interrupted{end.get('why', '')}{f': KeyboardInterrupt: {own}' if own else ''}"


def _hint(end: Mapping[str, Any]) -> str:
    """Return advice on failures of memory or packages."""
    if _NO_MEMORY.search(f"{end.get('ename')}: {end.get('evalue')}"):
        return (
            "\nits device has no memory left for that: what cells have put there stays until its names are deleted "
            "(`del`), or until `%sky restart`"
        )
    missing = _NO_MODULE.match(str(end.get("evalue"))) if end.get("ename") == "ModuleNotFoundError" else None
    if missing is None:
        return ""
    return (
        f"\n{missing[1]} is not on the nodes: `%%sky --sync` installs there what the notebook imports and has, "
        "`%%sky --pip PACKAGE` a package"
    )


def _told(outcome: Outcome) -> str:
    """Describe a failed rank; equal failures have equal descriptions."""
    end = outcome.end
    if outcome.status == "interrupted":
        return f"timed out{end.get('why', '')}" if "timeout" in end else _interrupted(end)
    if outcome.status == "error":
        lines = "\n".join(end.get("traceback", [])).splitlines()
        # Without IPython's horizontal line: ours is above.
        return "\n".join(lines[1:] if lines and set(plain(lines[0])) == {"-"} else lines) + _hint(end)
    what = "the process ended" if outcome.status == "died" else "the rank is lost"
    return f"{what}: {end.get('text', '')}" + "".join(f"\n  | {line}" for line in end.get("tail") or [])
