"""Which calls go the short way, and how they are waited for; docs/design-calls.md says why.

`begin` alone decides. All else is sent the long way, and so is a short call that was opened: one that takes long,
prints, fails, or whose connection broke.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from ..capture.collect import collect_value
from ..display.base.prompts import can_ask
from ..node.protocol.short_call_frames import MOST_ARGUMENTS
from ..pool.base.event_loop import counting_interrupts
from ..pool.base.events import Event
from ..pool.execution.short_calls import ShortCall
from ..pool.pool import Pool
from ..pool.runs.short_results import values_of
from .batch import main, name_of, note_restarts

if TYPE_CHECKING:
    from .calls import PendingCall

_TICK = 0.05
_ATOMS = (type(None), bool, int, float, complex, str, bytes)


def begin(
    live: Pool, call: PendingCall[Any], *, everywhere: bool = False, notes: list[Event] | None = None
) -> ShortCall | None:
    """Send a call on the short way; return None for one that is not for it.

    Parameters
    ----------
    live : Pool
        The pool.
    call : PendingCall
        The call, which streams nothing.
    everywhere : bool
        Whether it is one of all ranks.
    notes : list of Event
        Receives what there is to tell of a call of all ranks.

    Returns
    -------
    ShortCall or None
        The call, to be waited for.
    """
    short = live.calls.short
    if not short.are_possible or call.retries is not None:
        # Dask retries; it alone waits for nodes that are to come back.
        return None
    live.require_live()
    if live.calls.ended or live.supervisor.restarted:
        note_restarts(live)
    function = call.function.__wrapped__
    with live.calls.lock:
        ledger = live.ledger if everywhere else live.ledger.unsent()
    blob, capture = collect_value(function, main(), ledger, label=repr(call.function))
    if everywhere and (capture.bindings or capture.notes):
        # The long way tells the ledger that all ranks have them.
        return None
    # What shares an object with the function must be pickled together with it.
    is_alone = not everywhere or not (capture.names.reads or getattr(function, "__closure__", None))
    more: frozenset[str] = frozenset()
    if _is_plain(call.args, is_alone) and _is_plain(tuple(call.kwargs.values()), is_alone):
        arguments = pickle.dumps([(call.args, call.kwargs)], 5)
    elif is_alone:
        given, needs = collect_value(
            [(call.args, call.kwargs)], main(), live.ledger, label=f"an argument of {call.function!r}"
        )
        if given.buffers or needs.bindings or needs.imports or needs.call is not None:
            return None
        arguments, more = given.pickled, needs.modules
    else:
        return None
    if len(arguments) > MOST_ARGUMENTS:
        return None
    told: list[Event] = []
    warm = short.warm(blob, capture, more, told.append)
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
    ranks = list(range(live.spec.world_size)) if everywhere else []
    if call.rank is not None:
        ranks = live.check_ranks([call.rank])
        about["rank"] = call.rank
    sent = ShortCall(ranks, warm, arguments, about)
    short.send(sent)
    return sent


def _is_plain(value: Any, alone: bool) -> bool:
    """Return whether a value is made of atoms; ``alone`` also allows lists and dicts, which may be shared."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is tuple or (kind is list and alone) or (kind is dict and alone):
        parts = value.values() if kind is dict else value
        if len(value) <= 1000:
            return all(_is_plain(part, alone) for part in parts) and (
                kind is not dict or _is_plain(tuple(value), alone)
            )
    return False


def wait(live: Pool, sent: ShortCall) -> int:
    """Wait for a short call until it is over or opened; return how often it was interrupted."""
    with counting_interrupts() as presses:
        while not sent.lock.acquire(timeout=_TICK):
            if presses:
                live.calls.short.open(sent)
    return len(presses)


def values(sent: ShortCall) -> list[Any]:
    """Return the values of a call that is over."""
    return values_of(sent.results.values())
