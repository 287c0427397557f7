"""What a run leaves in the notebook: a `CellResult`, and a `CellError` where ranks failed."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from ..errors import PoolError, RankDied, RemoteError, SkyError, plain, rank_label

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
else:
    from exceptiongroup import ExceptionGroup


class RankInterrupted(SkyError):
    """A rank was interrupted, by the user or because another rank had failed."""


class TimedOut(RankInterrupted, TimeoutError):
    """A rank was interrupted because what it did took longer than it was given."""


class ValueNotHere(SkyError):
    """A rank returned something that cannot be brought into the notebook."""


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
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the rank ended in any way but well."""
        return self.status not in ("running", "ok")


class CellResult(Sequence[Any]):
    """What a run returned: a sequence of values, one a rank, in rank order.

    Made when a run ends; held by the notebook as ``_sky`` or under the name given by ``--out``.
    A value over 1 MB stays on its rank until it is touched. Touching the value of a rank that
    failed raises that rank's error.
    """

    def __init__(
        self, outcomes: Sequence[Outcome], elapsed: float, fetch: Callable[[int], bytes] | None = None, run: str = ""
    ) -> None:
        self._outcomes = {outcome.rank: outcome for outcome in sorted(outcomes, key=lambda item: item.rank)}
        self._fetch = fetch
        self._values: dict[int, Any] = {}
        self._exceptions: dict[int, Exception] = {}
        self.elapsed = elapsed
        self.run = run

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the run was on."""
        return tuple(self._outcomes)

    @property
    def values(self) -> list[Any]:
        """The values of the ranks that ended well, in rank order."""
        return [self.value(rank) for rank, outcome in self._outcomes.items() if not outcome.failed]

    @property
    def errors(self) -> Mapping[int, Exception]:
        """The exceptions of the ranks that failed, by rank."""
        return {rank: self._exception(rank) for rank, outcome in self._outcomes.items() if outcome.failed}

    @property
    def head(self) -> Any:
        """The value of the lowest rank that the run was on."""
        return self.value(next(iter(self._outcomes)))

    def value(self, rank: int) -> Any:
        """The value of one rank.

        Raises
        ------
        ValueNotHere
            When it cannot be pickled, or its type cannot be imported here.
        Exception
            The rank's own error, when it failed.
        """
        if rank not in self._outcomes:
            raise KeyError(f"rank {rank} took no part in this run; it was on ranks {list(self._outcomes)}")
        if self._outcomes[rank].failed:
            raise self._exception(rank)
        if rank not in self._values:
            self._values[rank] = self._load(rank)
        return self._values[rank]

    def stdout(self, rank: int) -> str:
        """All that a rank printed to its standard output."""
        return "".join(self._outcomes[rank].stdout)

    def stderr(self, rank: int) -> str:
        """All that a rank printed to its standard error."""
        return "".join(self._outcomes[rank].stderr)

    def _load(self, rank: int) -> Any:
        outcome = self._outcomes[rank]
        data = self._fetch(rank) if outcome.end.get("large") and self._fetch is not None else None
        return value_of(outcome, data)

    def _exception(self, rank: int) -> Exception:
        if rank not in self._exceptions:
            self._exceptions[rank] = exception_of(self._outcomes[rank])
        return self._exceptions[rank]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        ranks = self.ranks[index]
        return [self.value(rank) for rank in ranks] if isinstance(ranks, tuple) else self.value(ranks)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Any]:
        return (self.value(rank) for rank in self._outcomes)

    def __getstate__(self) -> dict[str, Any]:
        """What travels when a cell reads a result: the values, large ones too, and the errors."""
        outcomes = {}
        for rank, outcome in self._outcomes.items():
            end = dict(outcome.end)
            if end.pop("large", False) and self._fetch is not None:
                end["value"] = base64.b64encode(self._fetch(rank)).decode()
            outcomes[rank] = Outcome(rank, outcome.node, outcome.status, end, outcome.stdout, outcome.stderr)
        return {**vars(self), "_outcomes": outcomes, "_fetch": None, "_values": {}, "_exceptions": {}}

    def __repr__(self) -> str:
        failed = [rank for rank, outcome in self._outcomes.items() if outcome.failed]
        state = f", failed on {failed}" if failed else ""
        return f"<CellResult of {len(self)} rank{'s' if len(self) != 1 else ''}, {self.elapsed:.2f} s{state}>"


def value_of(outcome: Outcome, data: bytes | None = None) -> Any:
    """The value of a rank that ended well; ``data`` is a large one's pickle, where that has been fetched.

    Raises
    ------
    ValueNotHere
        When it cannot be pickled, or its type cannot be imported here.
    """
    end, whose = outcome.end, f"the value of rank {outcome.rank} ({outcome.end.get('type')})"
    if "unpicklable" in end:
        raise ValueNotHere(
            f"{whose} stays there: it cannot be pickled ({end['unpicklable']}). "
            "End the cell with something that can, such as an array"
        )
    if end.get("large") and data is None:
        raise ValueNotHere(f"{whose} was not kept")
    if data is None:
        if "value" not in end:
            return None
        data = base64.b64decode(end["value"])
    try:
        return pickle.loads(data)
    except Exception as error:
        text = f"{whose} could not be rebuilt in the notebook: {type(error).__name__}: {error}"
        raise ValueNotHere(text) from None


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
    error: BaseException | None = None
    if end.get("exception"):
        try:
            error = pickle.loads(base64.b64decode(end["exception"]))
        except Exception:
            error = None
    if not isinstance(error, Exception):
        error = RemoteError(f"{end.get('ename')}: {end.get('evalue')}")
    _note(error, f"raised on {where}; there:\n" + plain("\n".join(end.get("traceback", []))))
    return error


def _note(error: Exception, text: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]  # type: ignore[attr-defined]


class CellError(ExceptionGroup[Exception], SkyError):
    """Ranks of a run failed. An exception group of their errors, catchable by ``except*``.

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

    def __new__(cls, result: CellResult, outcomes: Sequence[Outcome]) -> CellError:
        failed = [outcome for outcome in outcomes if outcome.failed]
        self = super().__new__(cls, _headline(failed, len(result), cls.what), list(result.errors.values()))
        self.result = result
        self._blocks = _blocks(failed)
        return self

    def __init__(self, result: CellResult, outcomes: Sequence[Outcome]) -> None:
        super().__init__(self.message, self.exceptions)

    def __str__(self) -> str:
        return self.message

    def derive(self, excs: Sequence[Exception]) -> ExceptionGroup[Exception]:
        """A plain group: what `split` and ``except*`` leave over."""
        return ExceptionGroup(self.message, excs)

    @property
    def errors(self) -> Mapping[int, Exception]:
        """Each failed rank's exception, by rank."""
        return self.result.errors

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: each different traceback once, with the ranks that it is from."""
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self.message}", *self._blocks]


def _headline(failed: Sequence[Outcome], total: int, what: str) -> str:
    # Ranks that were only stopped because of the others did not fail themselves.
    causes = [outcome.rank for outcome in failed if outcome.status != "interrupted"]
    if not causes:
        return f"the {what} was stopped on {rank_label(outcome.rank for outcome in failed)} of {total}"
    if len(causes) == total:
        return f"the {what} failed on {'its only rank' if total == 1 else f'all {total} ranks'}"
    return f"the {what} failed on {rank_label(causes)} of {total}"


def _blocks(failed: Sequence[Outcome]) -> list[str]:
    groups: dict[str, list[Outcome]] = {}
    # What is most likely the cause comes first; ranks that were only stopped because of it come last.
    order = {"died": 0, "lost": 0, "error": 1, "interrupted": 2}
    for outcome in sorted(failed, key=lambda item: (order[item.status], item.rank)):
        groups.setdefault(_told(outcome), []).append(outcome)
    blocks = []
    for text, outcomes in groups.items():
        label = rank_label([outcome.rank for outcome in outcomes])
        blocks.append(f"\x1b[1m── {label} {'─' * max(3, 60 - len(label))}\x1b[22m\n{text}")
    return blocks


def _interrupted(end: Mapping[str, Any]) -> str:
    """That a rank was interrupted, why, and in which wait where it says so."""
    at = end.get("evalue") if end.get("ename") == "KeyboardInterrupt" else ""
    return f"interrupted{f' while {at}' if at else ''}{end.get('why', '')}"


def _told(outcome: Outcome) -> str:
    """What is to be said of a failed rank, without its number, so that equal fates are told once."""
    end = outcome.end
    if outcome.status == "interrupted":
        return _interrupted(end)
    if outcome.status == "error":
        lines = "\n".join(end.get("traceback", [])).splitlines()
        # IPython's rule would stand right below ours.
        return "\n".join(lines[1:] if lines and set(plain(lines[0])) == {"-"} else lines)
    what = "the process ended" if outcome.status == "died" else "the rank is lost"
    return f"{what}: {end.get('text', '')}" + "".join(f"\n  | {line}" for line in end.get("tail") or [])
