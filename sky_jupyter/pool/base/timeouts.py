"""How long a pool waits for what, and how often it looks: all of its times in one place, by subject.

A machine that is loaded, or a test, can have other ones: ``SKY_TIMEOUTS_SCALE=3`` in the notebook's environment, set
before anything of the pool is imported, makes all of them three times as long. What the nodes wait for themselves is
not among them, nor what a person chooses (`Options`, ``--timeout`` and so on).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from ...errors import SpecError

VARIABLE = "SKY_TIMEOUTS_SCALE"
T = TypeVar("T")


@dataclass(frozen=True)
class Liveness:
    """When a node is asked about, said to be silent, and given up: ``doubt`` < ``silence`` < ``absence``."""

    # A round of pings, and how long the first and each later connection to the scheduler may take.
    beat: float = 1.0
    first_dial: float = 10.0
    dial: float = 3.0
    # Whose end broke a connection is known about so much later.
    last_words: float = 0.6
    # Without an answer for this long, or twice as long as the last one took, others are asked about a machine.
    doubt: float = 0.8
    late_doubt: float = 3.0
    # Without an answer for this long, a node or the whole pool is said to be unreachable.
    silence: float = 4.0
    # A node that the scheduler has lost, and that is not back after this long, is given up.
    absence: float = 4.5
    # The same for one that the scheduler reaches through our own link, which is made again with growing pauses.
    far_absence: float = 30.0
    # Nobody may have heard of a machine for so long before it is given up, nor for so long since it is looked for.
    sure: float = 4.0
    least: float = 2.0
    # What asking others takes beside that, at most; others that say the same say it about then.
    round_trip: float = 2.0
    gather: float = 0.4
    pause: float = 0.5
    longest_pause: float = 5.0
    try_again: float = 0.2


@dataclass(frozen=True)
class Links:
    """The link to other machines, and the connections that it carries."""

    # Hosts that are lost together are told together.
    gather: float = 1.5
    pause: float = 1.0
    longest_pause: float = 30.0
    # For so long what could not be reached is tried again when the pool has been ended.
    finish: float = 1800.0
    # A host's words are followed again after so long.
    follow_pause: float = 0.2
    longest_follow_pause: float = 2.0
    # Whether hosts reach each other: one attempt, and all of them.
    connect: float = 5.0
    reach: float = 60.0
    # Who is to be called meanwhile ends by itself, should nobody tell it to: longer than ``connect``.
    listener: float = 30.0


@dataclass(frozen=True)
class Start:
    """The start of a pool, and its changes of nodes."""

    # A host says where its scheduler is, and its agents have joined.
    host: float = 60.0
    agents: float = 60.0
    # A host on another machine that is there already, or is to answer at once.
    remote_host: float = 30.0
    moment: float = 5.0
    # So long hosts live without word of who makes their pool, before it is ready: longer than ``agents``.
    lease: float = 75.0
    settle: float = 5.0
    # The agents of a pool that is taken up, or that has other nodes now.
    join: float = 10.0
    rejoin: float = 60.0
    # A host has seen what it is to be.
    seen: float = 5.0
    # What cannot be stopped in a thread, such as a connection that is being made, has this long to end.
    given_up: float = 30.0
    freed: float = 2.0
    # Frameworks are set up anew: a machine that has much else to do takes long.
    set_up_again: float = 60.0
    # The user's own Dask workers.
    dask: float = 120.0


@dataclass(frozen=True)
class End:
    """The end of a pool; what its ranks may take is the user's to say (``--exit-timeout``)."""

    # Hosts that were being started, or a change of nodes, have ended.
    others: float = 20.0
    # What the ranks' end may take besides their own time: longer than ``plugins``, which are left before.
    ranks: float = 10.0
    plugins: float = 5.0
    # What an agent may need besides, to kill and to answer.
    margin: float = 5.0
    # An end that takes no longer than this needs no words.
    quiet: float = 0.5
    interrupt: float = 1.0
    moment: float = 2.0
    host: float = 5.0
    host_process: float = 10.0
    dask_client: float = 5.0
    # A host that has ended may have said why.
    last_words: float = 0.3
    # The nodes' clocks began a moment before or after ours.
    ttl_margin: float = 2.0


@dataclass(frozen=True)
class Interrupts:
    """What a person waits for who interrupts a run: ``heed`` < ``agents`` < ``freed`` <= ``last``."""

    # Who has not heeded an interrupt by then is looked at.
    heed: float = 0.3
    agents: float = 1.0
    # Who has heeded it may still run `finally` blocks, or show where it was; on a busy machine that takes a while.
    shown: float = 3.0
    # A rank may still be compiling what will then fail at once.
    abort: float = 8.0
    # Of a second interrupt the person has the prompt back after this, whatever does not answer.
    freed: float = 3.0
    # Whoever waits goes on so long after the run is given up, and at the latest after ``last``.
    after: float = 0.5
    last: float = 4.5
    # Two presses within this time are one that was a double click.
    double_click: float = 1.0


@dataclass(frozen=True)
class Repairs:
    """New kernels for ranks that have lost theirs."""

    kill: float = 20.0
    check: float = 3.0
    reach: float = 2.0
    # A node whose agent ended is back before that; where it is not, what is run on it says so.
    returned: float = 5.0
    # One that its host has begun to make anew comes, however busy the machine is.
    revived: float = 30.0
    # A kernel that ends by itself too often in this time is not replaced any more.
    ends_within: float = 60.0
    # After the head's loss, whoever has not answered by then is not waited for.
    recovery: float = 3.0


@dataclass(frozen=True)
class Answers:
    """What nodes are asked while nobody runs anything, or beside it."""

    read: float = 60.0
    # So long an answer is waited for that may never come, as a process of the pool stands still.
    halted: float = 5.0
    status: float = 2.0
    # Whoever looks sooner than this after another sees what that one saw.
    fresh: float = 0.5
    # Requests of the panel: what takes longer goes on, and the answer says so.
    request: float = 2.0
    calls: float = 2.0
    # A look at the stacks: between its two samples, in all, and what the way there and back may take.
    stack_window: float = 0.15
    stacks: float = 0.8
    stacks_margin: float = 0.85
    stacks_margin_each: float = 0.15
    stacks_most_margin: float = 15.0
    # A run that is silent for so long is looked at, twice, and then ever less often.
    hang: float = 30.0
    hang_confirm: float = 2.0
    hang_longest: float = 600.0


@dataclass(frozen=True)
class Transfers:
    """Files, values, code and packages on their way."""

    # A repr is not worth a longer wait.
    repr: float = 2.0
    # What is stopped has so long to end; what was sent, to be let go of.
    farewell: float = 6.0
    goodbye: float = 5.0
    again: float = 0.5
    # From node to node: who takes slowly is not waited for by the others.
    slow_age: float = 3.0
    # An agent that ends is revived; a node that is still lost after this long gets nothing.
    absence: float = 6.0
    # One that stands still may go on where it was.
    silence: float = 30.0


@dataclass(frozen=True)
class Polls:
    """How often something is looked at that cannot be waited for."""

    loop: float = 0.05
    retry: float = 0.2
    answer: float = 0.1
    control: float = 0.01
    broken: float = 0.1
    remote_host: float = 0.1
    host_words: float = 0.5
    follow: float = 0.5
    resize: float = 0.05
    kernel_end: float = 0.05
    end: float = 0.02
    machines: float = 0.5
    shared: float = 0.1
    transfer: float = 0.1
    # A person is told how far values are.
    progress: float = 0.1
    first_copy: float = 0.01
    last_copy: float = 0.3
    copies: float = 0.5
    streams: float = 0.02
    repairs: float = 0.1
    # So long after something was sent to the ranks' widgets, what came meanwhile goes as one.
    widgets: float = 0.05
    calls: float = 1.0
    calls_again: float = 0.1


@dataclass(frozen=True)
class Machines:
    """Machines that are made for a pool, and are to end with it."""

    # So long the processes of machines that have ended may take to be seen ending.
    hosts: float = 2.0
    # A sweep of what earlier pools left, and how often it looks.
    sweep: float = 60.0
    sweep_pause: float = 0.1
    longest_sweep_pause: float = 5.0
    # So much longer than the pool's own times they may live, and be waited for.
    margin: float = 600.0


@dataclass(frozen=True)
class Registers:
    """The registry of pools."""

    # Another process writes.
    busy: float = 10.0
    # So much longer than its lease a pool is believed to live.
    lease_margin: float = 60.0


@dataclass(frozen=True)
class Timeouts:
    """All of them, in seconds."""

    liveness: Liveness = field(default_factory=Liveness)
    links: Links = field(default_factory=Links)
    start: Start = field(default_factory=Start)
    end: End = field(default_factory=End)
    interrupts: Interrupts = field(default_factory=Interrupts)
    repairs: Repairs = field(default_factory=Repairs)
    answers: Answers = field(default_factory=Answers)
    transfers: Transfers = field(default_factory=Transfers)
    polls: Polls = field(default_factory=Polls)
    machines: Machines = field(default_factory=Machines)
    registry: Registers = field(default_factory=Registers)
    # How many times as long as usual these are: for the calls of agents, whose times are in their table.
    scale: float = 1.0

    def scaled(self, factor: float) -> Timeouts:
        """Return timeouts that are so many times as long; how they stand to each other stays the same."""
        groups = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "scale"}
        return replace(
            self, scale=self.scale * factor, **{name: _scaled(group, factor) for name, group in groups.items()}
        )

    @classmethod
    def of_environment(cls) -> Timeouts:
        """Return those of this process.

        Raises
        ------
        SpecError
            When ``SKY_TIMEOUTS_SCALE`` is no number above 0.
        """
        text = os.environ.get(VARIABLE, "1")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not 0 < factor < math.inf:
            raise SpecError(f"{VARIABLE} must be a number above 0, not {text!r}")
        return cls() if factor == 1 else cls().scaled(factor)


def _scaled(group: T, factor: float) -> T:
    values: dict[str, Any] = {one.name: getattr(group, one.name) * factor for one in fields(group)}  # type: ignore[arg-type]
    return type(group)(**values)


TIMEOUTS = Timeouts.of_environment()
