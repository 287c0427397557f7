"""What a run leaves in the notebook: a `CellResult`, and a `CellError` where ranks failed."""

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

from ...errors import PoolError, RankDied, SkyError, plain
from ...node.protocol.events import gap_text
from ...node.serialization.remote_repr import RemoteRepr
from ...util.text import format_size, rank_label
from . import exceptions
from .printed_output import MOST, Printed

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
else:
    from exceptiongroup import ExceptionGroup

# Of what a rank failed with, in a headline.
_MOST_CAUSE = 200
# What differs between ranks that failed alike: addresses of objects, and ports.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|(?<=\]):\d{2,5}\b|(?<=\d\.\d\.\d\.\d):\d{2,5}\b")
# How frameworks and Python say that a connection's other end is gone.
_LOST = re.compile(
    r"connection (reset|closed|refused|aborted|lost|to)|closed by (the )?(remote )?peer|broken ?pipe|ConnectionError"
    r"|Connection(Reset|Refused|Aborted)|gloo|nccl|heartbeat|coordination service|socket closed|peer (is )?gone",
    re.IGNORECASE,
)
# What JAX writes when it ends the processes of all other ranks, as the one that coordinates them is gone.
_ABORTED = re.compile(r"distributed service detected fatal errors")
# What torch and JAX say where a device, or the machine, has no memory left; JAX's class has had several names.
_NO_MEMORY = re.compile(
    r"\AOutOfMemoryError: |RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|allocat)|DefaultCPUAllocator: can't allocate"
)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


class RankInterrupted(SkyError):
    """A rank was interrupted, by the user or because another rank had failed."""


class TimedOut(RankInterrupted, TimeoutError):
    """A rank was interrupted because what it did took longer than it was given."""


class ValueNotHere(SkyError):
    """A rank had a large value that is not there any more, or cannot be reached."""


class Source(Protocol):
    """Where values are that have not been touched."""

    def bring(self, ranks: Sequence[int]) -> tuple[Mapping[int, Any], Mapping[int, str]]:
        """The values of ranks, and of those that are not there, why."""

    def text(self, rank: int) -> str | None:
        """The repr of a rank's value, where that can be had soon."""

    def printed(self, rank: int, stream: str, before: int) -> str:
        """What a rank wrote to an output before the event of a number; raises SkyError where that cannot be had."""

    def hold(self) -> Callable[[], None]:
        """Have the values held until what this returns is called."""


@dataclass
class Outcome:
    """How a run went on one rank; filled in by the run as events come.

    Parameters
    ----------
    rank, node : int
        Where.
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
        """Whether the rank ended in any way but well."""
        return self.status not in ("running", "ok")


class CellResult(Sequence[Any]):
    """Results of a run: a sequence with one value per rank, in rank order.

    Made when a run ends; held by the notebook as ``_sky`` or under the name given by ``--out``.
    A value over 1 MB stays on its rank until it is touched, and comes once. A value that cannot come
    is a `RemoteRepr`. Touching the value of a rank that failed raises that rank's error.

    Parameters
    ----------
    outcomes : sequence of Outcome
        How the run went on each rank.
    elapsed : float
        Seconds that it took.
    source : Source, optional
        Where large values are.
    run : str
        The run's id.
    holds : bool
        Whether the ranks hold large values for as long as this lives.
    """

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        elapsed: float,
        source: Source | None = None,
        run: str = "",
        *,
        holds: bool = False,
    ) -> None:
        self._outcomes = {outcome.rank: outcome for outcome in sorted(outcomes, key=lambda item: item.rank)}
        self._source = source
        self._values: dict[int, Any] = {}
        self._exceptions: dict[int, Exception] = {}
        # Two threads do not fetch a value twice.
        self._lock = threading.RLock()
        self.elapsed = elapsed
        self.run = run
        if holds and source is not None and any(map(self._is_away, self._outcomes)):
            # At the process's end nobody is told: a later notebook may ask for the values.
            weakref.finalize(self, source.hold()).atexit = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the run was on."""
        return tuple(self._outcomes)

    @property
    def values(self) -> list[Any]:
        """The values of the ranks that ended well, in rank order."""
        return self._several([rank for rank, outcome in self._outcomes.items() if not outcome.failed])

    @property
    def errors(self) -> Mapping[int, Exception]:
        """The exceptions of the failed ranks, by rank.

        An exception that has to be unpickled is so on first access.
        """
        return _Errors(self._exception, [rank for rank, outcome in self._outcomes.items() if outcome.failed])

    def leaves(self) -> list[Exception]:
        """Return an exception for each failed rank, without unpickling anything.

        Each is caught as the rank's own exception is.

        Returns
        -------
        list of Exception
            In rank order.
        """
        return [self._leaf(rank) for rank, outcome in self._outcomes.items() if outcome.failed]

    @property
    def head(self) -> Any:
        """The value of the lowest rank that the run was on."""
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

        The notebook keeps the newest 64 MB of a run; older output is read from the node's journal. A line stands
        for what the journal has lost.

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
        """Whether a value is on its rank, and nowhere else."""
        outcome = self._outcomes[rank]
        return outcome.status == "ok" and bool(outcome.end.get("large")) and rank not in self._values

    def _bring(self, ranks: Iterable[int]) -> Mapping[int, str]:
        """Fetch what is away of ranks, all at once; why some are missing."""
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
        """A value that came with its run's end."""
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
        if outcome.status != "error" or exceptions.exact(outcome.end.get("raised")) is not None:
            # It can be had without.
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
        """What travels when a cell reads a result: the values, large ones too, and the errors."""
        missing = self._bring(self._outcomes)
        if missing:
            rank = next(iter(missing))
            raise ValueNotHere(f"the value of rank {rank} cannot be fetched: {missing[rank]}")
        outcomes = {}
        for rank, outcome in self._outcomes.items():
            if not outcome.failed:
                # What has been changed in it since is to be seen there.
                self.value(rank)
            end = {name: part for name, part in outcome.end.items() if name not in ("value", "large")}
            outcomes[rank] = Outcome(rank, outcome.node, outcome.status, end, outcome.stdout, outcome.stderr)
        values = dict(sorted(self._values.items()))
        return {"_outcomes": outcomes, "_values": values, "elapsed": self.elapsed, "run": self.run}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _source=None, _exceptions={}, _lock=threading.RLock())

    def __repr__(self) -> str:
        failed = [rank for rank, outcome in self._outcomes.items() if outcome.failed]
        state = f", failed on {failed}" if failed else ""
        return f"<CellResult of {len(self)} rank{'s' if len(self) != 1 else ''}, {self.elapsed:.2f} s{state}>"


def exception_of(outcome: Outcome) -> Exception:
    """The exception that stands for a failed rank: its own type where that travels."""
    end, where = outcome.end, f"rank {outcome.rank} (node {outcome.node})"
    if outcome.status == "died":
        text = f"the process of {where} ended while the run was on it: {end.get('text', 'it is gone')}"
        tail = end.get("tail") or []
        return RankDied(text + "".join(f"\n  | {line}" for line in tail))
    if outcome.status == "lost" and end.get("unbegun"):
        return PoolError(f"the call was given up before a rank had begun it: {end.get('text')}")
    if outcome.status == "lost":
        return RankDied(f"{where} is lost: {end.get('text', 'its node does not answer')}")
    if outcome.status == "interrupted" and "timeout" in end:
        return TimedOut(f"{where} was stopped{end.get('why', '')}")
    if outcome.status == "interrupted":
        return RankInterrupted(f"{where} was {_interrupted(end)}")
    error: BaseException | None = exceptions.exact(end.get("raised"))
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
    return exceptions.likeness(outcome.end.get("raised"), str(outcome.end.get("ename")), str(outcome.end.get("evalue")))


def _note_origin(error: Exception, outcome: Outcome) -> None:
    where = f"rank {outcome.rank} (node {outcome.node})"
    _note(error, f"raised on {where}; there:\n" + plain("\n".join(outcome.end.get("traceback", []))))


class _Errors(Mapping[int, Exception]):
    """The errors of ranks, each made when it is touched."""

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


class CellError(ExceptionGroup[Exception], SkyError):
    """Raised when ranks of a run failed; a group of their exceptions.

    ``except*`` catches them by type.

    Attributes
    ----------
    result : CellResult
        What the other ranks returned.
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
        # Where the traceback follows, what it ends with need not stand above it too.
        self._above = _headline(failed, len(result), cls.what, raised_too=False)
        return self

    def __init__(self, result: CellResult, outcomes: Sequence[Outcome]) -> None:
        super().__init__(self.message, self.exceptions)

    def __str__(self) -> str:
        return self.message

    def derive(self, excs: Sequence[Exception]) -> ExceptionGroup[Exception]:
        """Return a plain group: what `split` and ``except*`` leave over."""
        return ExceptionGroup(self.message, excs)

    @property
    def errors(self) -> Mapping[int, Exception]:
        """Each failed rank's exception, by rank."""
        return self.result.errors

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: each different traceback once, with the ranks that it is from."""
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self._above}", *self._blocks]


def _headline(failed: Sequence[Outcome], total: int, what: str, *, raised_too: bool = True) -> str:
    """On which ranks, and what the cause was, in a line."""
    stopped = [outcome for outcome in failed if outcome.status == "interrupted"]
    if len(stopped) == len(failed):
        done = "timed out" if all("timeout" in outcome.end for outcome in stopped) else "was stopped"
        return f"the {what} {done} on {rank_label(outcome.rank for outcome in failed)} of {total}"
    # Ranks that were only stopped, or lost their connection, because of the others did not fail themselves.
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
    """Why a rank failed, in a line."""
    end = outcome.end
    if outcome.status != "error":
        text = str(end.get("text") or "")
        first = text.partition("\n")[0] or "it is gone"
        return f"it was {first}" if first.startswith("killed") else first
    name, says = str(end.get("ename") or "an error"), str(end.get("evalue") or "").strip().partition("\n")[0]
    return _shortened(f"{name}: {says}" if says else name)


def _shortened(text: str) -> str:
    """A line as a headline has it."""
    return text if len(text) <= _MOST_CAUSE else f"{text[:_MOST_CAUSE]}…"


def _damaged(failed: Sequence[Outcome]) -> list[Outcome]:
    """Ranks that failed because another one's process has ended: their connections to it were closed."""
    if not any(outcome.status in ("died", "lost") for outcome in failed):
        return []
    ended = [outcome for outcome in failed if outcome.status == "died" and aborted(outcome.end)]
    if not any(outcome.status in ("died", "lost") and outcome not in ended for outcome in failed):
        ended = []
    errors = [outcome for outcome in failed if outcome.status == "error"]
    return ended + [one for one in errors if _LOST.search(f"{one.end.get('ename')}: {one.end.get('evalue')}")]


def aborted(end: Mapping[str, Any]) -> bool:
    """Whether a framework ended a rank's process because another rank's process was gone."""
    return any(_ABORTED.search(line) for line in end.get("tail") or ())


def _blocks(failed: Sequence[Outcome]) -> list[str]:
    groups: dict[str, list[Outcome]] = {}
    damaged = _damaged(failed)
    gone = rank_label(one.rank for one in failed if one.status in ("died", "lost") and one not in damaged)
    # What is most likely the cause comes first; ranks that were only stopped because of it come last.
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
    """That a rank was interrupted, why, and in which wait where it says so."""
    if end.get("at"):
        return f"interrupted while {end['at']}{end.get('why', '')}"
    # What the user's code says that raised it itself.
    own = end.get("evalue") if end.get("ename") == "KeyboardInterrupt" else ""
    return f"interrupted{end.get('why', '')}{f': KeyboardInterrupt: {own}' if own else ''}"


def _hint(end: Mapping[str, Any]) -> str:
    """What can be done about a failure that has to do with where the code runs."""
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
    """What is to be said of a failed rank, without its number, so that equal fates are told once."""
    end = outcome.end
    if outcome.status == "interrupted":
        return f"timed out{end.get('why', '')}" if "timeout" in end else _interrupted(end)
    if outcome.status == "error":
        lines = "\n".join(end.get("traceback", [])).splitlines()
        # IPython's rule would stand right below ours.
        return "\n".join(lines[1:] if lines and set(plain(lines[0])) == {"-"} else lines) + _hint(end)
    what = "the process ended" if outcome.status == "died" else "the rank is lost"
    return f"{what}: {end.get('text', '')}" + "".join(f"\n  | {line}" for line in end.get("tail") or [])
