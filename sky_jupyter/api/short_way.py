"""Choice of the calls that are short calls, and the wait for one.

docs/design-calls.md says why.

Only `make` decides. All other calls are sent the long way. A short call that takes long, prints, fails or loses its
connection is opened: it continues the long way.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..capture.collect import collect_value
from ..capture.plain_pickle import NotPlain, plain_pickle
from ..display.base.prompts import can_ask
from ..node.protocol.shared_bytes import AnyBytes, SharedWriter, TooLarge
from ..node.protocol.short_call_frames import MOST_ARGUMENTS
from ..pool.base.events import Event
from ..pool.base.timeouts import TIMEOUTS
from ..pool.execution.short_call import ShortCall
from ..pool.pool import Pool
from ..session import cells
from ..util.interrupts import counting_interrupts

if TYPE_CHECKING:
    from .context import BoundCall

T = TypeVar("T")
_TICK = TIMEOUTS.polls.direct_calls
_ATOMS = (type(None), bool, int, float, complex, str, bytes)


def begin(
    live: Pool,
    call: BoundCall[Any],
    *,
    everywhere: bool = False,
    notes: list[Event] | None = None,
) -> ShortCall | None:
    """Return a short call for `run` or `submit` to send; None if it cannot be one.

    Parameters
    ----------
    live : Pool
        The pool.
    call : BoundCall
        The call; it must not stream.
    everywhere : bool
        Whether the call is for all ranks.
    notes : list of Event
        Receives the events to show, for a call for all ranks.

    Returns
    -------
    ShortCall or None
        The call.
    """
    if live.calls.ended or live.supervisor.restarted:
        note_restarts(live)
    return make(live, [call], everywhere=everywhere, notes=notes)


def make(
    live: Pool, calls: Sequence[BoundCall[Any]], *, everywhere: bool = False, notes: list[Event] | None = None
) -> ShortCall | None:
    """Return calls of one function as one short call; None if they cannot be one.

    See `begin`.
    """
    short, call = live.calls.short, calls[0]
    if not short.are_possible or call.retries is not None or live.pythons.reader:
        # Dask retries calls: only it waits for nodes that come back. If nodes have another Python version, the long way
        # refuses code by value.
        return None
    live.require_live()
    function = call.function.__wrapped__
    with live.calls.lock:
        known = short.known(function, everywhere=everywhere, ledger=live.ledger, namespace=main())
    if everywhere and (known.capture.bindings or known.capture.notes):
        # The long way records in the ledger that all ranks have them.
        return None
    # Arguments that share an object with the function must be pickled together with it.
    is_alone = not everywhere or not (known.capture.names.reads or getattr(function, "__closure__", None))
    # A function that reads only values that cannot change shares no lists or dicts with its arguments.
    given = _arguments(live, calls, is_alone, is_alone or known.unchanged is not None)
    if given is None:
        return None
    arguments, modules = given
    told: list[Event] = []
    with live.calls.lock:
        warm = short.warm(known, modules, told.append)
    if notes is not None:
        notes += told
    if warm is None or (everywhere and told):
        return None
    about: dict[str, Any] = {"title": name_of(call)}
    if call.timeout is not None:
        about["timeout"] = call.timeout
    if everywhere:
        about["all"] = True
        if live.ask is not None and can_ask():
            about["asks"] = True
    if len(calls) > 1:
        about["together"] = True
    ranks = list(range(live.spec.world_size)) if everywhere else []
    if call.rank is not None:
        ranks = live.check_ranks([call.rank])
        about["rank"] = call.rank
    return ShortCall(ranks, warm, arguments, about, len(calls))


def _arguments(
    live: Pool, calls: Sequence[BoundCall[Any]], alone: bool, has_own_lists: bool
) -> tuple[AnyBytes, frozenset[str]] | None:
    """Return calls' pickled arguments and modules; None if no frame can hold them.

    ``alone`` says that the arguments share no object with the function, ``has_own_lists`` that they share no list or
    dict.
    """
    each = [(call.args, call.kwargs) for call in calls]
    short = live.calls.short

    def new_writer() -> SharedWriter:
        return SharedWriter(MOST_ARGUMENTS, shares=short.direct.is_possible, spare=short.spare.take)

    try:
        if has_own_lists or all(_is_atom((args, *kwargs.values())) for args, kwargs in each):
            with contextlib.suppress(NotPlain):
                return plain_pickle(each, new_writer()), frozenset()
        if not alone:
            return None
        label = f"an argument of {calls[0].function!r}"
        given, needs = collect_value(each, main(), live.ledger.unsent(), label=label, inline=MOST_ARGUMENTS)
        if given.buffers or needs.bindings or needs.imports or needs.call is not None:
            return None
        writer = new_writer()
        writer.write(given.pickled)
        return writer.written(), needs.modules
    except TooLarge:
        return None


def _is_atom(value: Any) -> bool:
    """Return whether a value has no mutable part: it is an atom or a tuple of atoms."""
    kind = type(value)
    return kind in _ATOMS or (kind is tuple and len(value) <= 1000 and all(map(_is_atom, value)))


def run(live: Pool, sent: ShortCall, take_up: Callable[[], T]) -> tuple[int, T | None]:
    """Send a call, and wait until it has ended, or was opened and taken up.

    Return the number of interrupts, and the result of ``take_up`` if the call was opened, else None.
    """
    # No interrupt may come between these steps: the rank would go on, and nobody would stop it.
    with counting_interrupts() as presses:
        short = live.calls.short
        if short.direct.make(sent, presses):
            if not sent.opened:
                short.note(sent)
        else:
            short.send(sent)
            while not sent.lock.acquire(timeout=_TICK):
                if presses:
                    short.open(sent)
        taken = take_up() if sent.opened else None
    return len(presses), taken


def submit(live: Pool, sent: ShortCall, on_over: Callable[[ShortCall], None]) -> None:
    """Send a call that nobody waits for.

    Parameters
    ----------
    live : Pool
        The pool.
    sent : ShortCall
        The call.
    on_over : callable
        Called on the loop when the call has ended or was opened.

    Raises
    ------
    KeyboardInterrupt
        When an interrupt came meanwhile; the call has been sent.
    """
    sent.on_over = on_over
    with counting_interrupts() as presses:
        live.calls.short.send(sent)
    if presses:
        raise KeyboardInterrupt


def note_restarts(live: Pool) -> None:
    """Forget what was sent to kernels that were replaced."""
    with live.calls.lock:
        live.calls.note_writes(main())
        cells.forget_sent(live, live.take_restarted(), main())


def main() -> dict[str, Any]:
    """Return the notebook's or script's namespace."""
    return vars(sys.modules["__main__"])


def name_of(call: BoundCall[Any]) -> str:
    """Return the name of a call's function."""
    return str(getattr(call.function, "__name__", "function"))
