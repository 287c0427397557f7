"""All timeouts and poll intervals of a pool, in seconds, by subject.

``SKY_TIMEOUTS_SCALE=3`` in the notebook's environment, set before the pool's modules are imported, makes all of them
three times as long, for loaded machines and for tests. This excludes the nodes' own timeouts, and those that users
choose (`Options`, ``--timeout``).
"""

from __future__ import annotations

import math
import os
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, NoReturn, TypeVar

from ...errors import SpecError

VARIABLE = "SKY_TIMEOUTS_SCALE"


class TimeoutGroup:
    """Base of the groups of timeouts: the defaults of its class, and given values.

    `%load_ext` waits for this module. The methods that `dataclass` generates for so many fields take ten times as long
    to compile as all of these classes.
    """

    def __init__(self, **values: Any) -> None:
        if wrong := values.keys() - {one.name for one in fields(self)}:  # type: ignore[arg-type]
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(wrong))}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


G = TypeVar("G", bound=TimeoutGroup)


@dataclass(init=False, repr=False, eq=False)
class Liveness(TimeoutGroup):
    """Failure detection of nodes: ``doubt`` < ``silence`` < ``absence``."""

    # The interval of pings; the timeouts of the first and of later connections to the scheduler.
    beat: float = 1.0
    first_dial: float = 10.0
    dial: float = 3.0
    # The delay after a broken connection until its cause is known.
    last_words: float = 0.6
    # After this long without an answer, or twice the last round trip, other machines are asked about the silent one.
    doubt: float = 0.8
    late_doubt: float = 3.0
    # After this long without an answer, a node or the whole pool is reported as unreachable.
    silence: float = 4.0
    # A node that left the scheduler is declared lost after this long.
    absence: float = 4.5
    # The same for a node behind our own link, which reconnects with back-off.
    far_absence: float = 30.0
    # A machine is declared lost when it has not answered for `sure`, and the inquiry has lasted `least`.
    sure: float = 4.0
    least: float = 2.0
    # The longest round trip of an inquiry; how far apart the answers of other machines may come.
    round_trip: float = 2.0
    gather: float = 0.4
    pause: float = 0.5
    longest_pause: float = 5.0
    try_again: float = 0.2


@dataclass(init=False, repr=False, eq=False)
class Links(TimeoutGroup):
    """Links to other machines, and the connections that they carry."""

    # Hosts that are lost within this time are reported in one message.
    gather: float = 1.5
    pause: float = 1.0
    longest_pause: float = 30.0
    # Unreachable hosts of an ended pool are retried for this long.
    finish: float = 1800.0
    # The back-off of following a host's event file.
    follow_pause: float = 0.2
    longest_follow_pause: float = 2.0
    # The check that hosts reach each other: one connection, and the whole check.
    connect: float = 5.0
    reach: float = 60.0
    # The listeners of that check end by themselves after this: longer than ``connect``.
    listener: float = 30.0


@dataclass(init=False, repr=False, eq=False)
class Start(TimeoutGroup):
    """Start of a pool, and changes of its nodes."""

    # The time for a host to report its scheduler's address, and for its agents to join.
    host: float = 60.0
    agents: float = 60.0
    # The answer of a remote host that runs already, and of one that must answer at once.
    remote_host: float = 30.0
    moment: float = 5.0
    # The hosts' lease until the pool is ready: longer than ``agents``.
    lease: float = 75.0
    settle: float = 5.0
    # The time for the agents of an attached or a resized pool to join.
    join: float = 10.0
    rejoin: float = 60.0
    # The time for a host to read its new configuration.
    seen: float = 5.0
    # The grace of a thread that cannot be cancelled, such as one that connects.
    given_up: float = 30.0
    freed: float = 2.0
    # The frameworks are set up again, which is slow on a loaded machine.
    set_up_again: float = 60.0
    # The user's own Dask workers.
    dask: float = 120.0


@dataclass(init=False, repr=False, eq=False)
class End(TimeoutGroup):
    """Shutdown of a pool; users set the ranks' time (``--exit-timeout``)."""

    # The time for a running start or resize to stop.
    others: float = 20.0
    # The ranks' shutdown, in addition to their own time. It is longer than ``plugins``, which exit before.
    ranks: float = 10.0
    plugins: float = 5.0
    # The time that an agent needs in addition, to kill and to answer.
    margin: float = 5.0
    # A shutdown that takes no longer than this is not reported.
    quiet: float = 0.5
    interrupt: float = 1.0
    moment: float = 2.0
    host: float = 5.0
    host_process: float = 10.0
    dask_client: float = 5.0
    # How long the reason of a host that has ended may take to arrive.
    last_words: float = 0.3
    # How long a pool waits for an answer when its budget is used up; how much later nodes without a manager end.
    budget: float = 60.0
    budget_margin: float = 90.0
    # The nodes' clocks may differ from ours by this much.
    ttl_margin: float = 2.0


@dataclass(init=False, repr=False, eq=False)
class Interrupts(TimeoutGroup):
    """Interrupts of a run: ``heed`` < ``agents`` < ``freed`` <= ``last``."""

    # The stacks of ranks that have not stopped after this long are sampled.
    heed: float = 0.3
    agents: float = 1.0
    # A rank that heeded it may still run `finally` blocks or format its traceback, slowly on a busy machine.
    shown: float = 3.0
    # A rank may still be compiling what then fails at once.
    abort: float = 8.0
    # A second interrupt returns the prompt after this, even if ranks do not answer.
    freed: float = 3.0
    # The caller goes on this long after the run is given up, and at the latest after ``last``.
    after: float = 0.5
    last: float = 4.5
    # Two interrupts within this time count as one: a double click.
    double_click: float = 1.0


@dataclass(init=False, repr=False, eq=False)
class Repairs(TimeoutGroup):
    """Replacement of kernels that have died."""

    kill: float = 20.0
    check: float = 3.0
    reach: float = 2.0
    # A node whose agent ended must be back within this; else runs on it fail.
    returned: float = 5.0
    # The same for an agent that its host is restarting.
    revived: float = 30.0
    # How long nodes that were lost together are waited for, once one of them is back.
    together: float = 2.0
    # A kernel that ends by itself too often within this time is not replaced.
    ends_within: float = 60.0
    # After the head's loss, agents have this long to answer.
    recovery: float = 3.0


@dataclass(init=False, repr=False, eq=False)
class TurnLeases(TimeoutGroup):
    """Turns of the notebooks that share a pool: ``renewal`` < ``lease``."""

    # A guest that has not been heard for this long is gone; a request for a turn is repeated after the waits.
    lease: float = 10.0
    renewal: float = 2.0
    first_wait: float = 0.3
    wait: float = 1.0


@dataclass(init=False, repr=False, eq=False)
class Answers(TimeoutGroup):
    """Requests to nodes that are idle, or beside a run."""

    read: float = 60.0
    # The timeout of an answer while a process of the pool is stopped.
    halted: float = 5.0
    status: float = 2.0
    # How long a status is cached.
    fresh: float = 0.5
    # Requests of the panel. A longer one goes on in the background, and the answer says so.
    request: float = 2.0
    calls: float = 2.0
    # Names: the timeout of an idle rank, and what the network may add.
    names: float = 1.0
    names_margin: float = 1.0
    # While a person types: jedi's answer for a busy rank, that of an idle one, and either's to ``name?``.
    jedi: float = 0.2
    jedi_apart: float = 1.5
    typing: float = 0.5
    asked_names: float = 2.0
    # Stacks: the interval of the two samples, the timeout, and what the network may add.
    stack_window: float = 0.15
    stacks: float = 0.8
    stacks_margin: float = 0.85
    stacks_margin_each: float = 0.15
    stacks_most_margin: float = 15.0
    # A run without output for this long is checked for a hang: twice, then with back-off.
    hang: float = 30.0
    hang_confirm: float = 2.0
    hang_longest: float = 600.0


@dataclass(init=False, repr=False, eq=False)
class Transfers(TimeoutGroup):
    """Transfers of files, values, code and packages."""

    # The timeout of a repr.
    repr: float = 2.0
    # A cancelled transfer ends within `farewell`; its data is released within `goodbye`.
    farewell: float = 6.0
    goodbye: float = 5.0
    again: float = 0.5
    # From node to node: other receivers do not wait longer for a slow one.
    slow_age: float = 3.0
    # An agent that ends is restarted; a node that is still lost after this long is left out.
    absence: float = 6.0
    # How long to wait for a stopped process, which may continue.
    silence: float = 30.0


@dataclass(init=False, repr=False, eq=False)
class Polls(TimeoutGroup):
    """Poll intervals."""

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
    # The interval at which the progress of values is shown.
    progress: float = 0.1
    first_copy: float = 0.01
    last_copy: float = 0.3
    copies: float = 0.5
    streams: float = 0.02
    repairs: float = 0.1
    # Widget messages that arrive within this time are sent as one.
    widgets: float = 0.05
    calls: float = 1.0
    calls_again: float = 0.1
    # Short calls that take longer than this continue the long way.
    short_calls: float = 0.1
    # An interrupt of a call is seen within this time, if its own thread waits for the call.
    direct_calls: float = 0.05
    acknowledgements: float = 0.01
    # Calls that follow each other within this time share a check of the project's files.
    files: float = 0.001
    # The interval at which the cost of a pool's machines is updated.
    costs: float = 60.0


@dataclass(init=False, repr=False, eq=False)
class Machines(TimeoutGroup):
    """Machines that are created for a pool, and destroyed with it."""

    # The time for the processes of destroyed machines to end visibly.
    hosts: float = 2.0
    # A sweep of machines that earlier pools left, and its polls.
    sweep: float = 60.0
    sweep_pause: float = 0.1
    longest_sweep_pause: float = 5.0
    # How long a place that had no machines is tried only after all others.
    refusal: float = 180.0
    # The interval at which a process that sweeps asks providers for machines that belong to no pool.
    strays: float = 600.0
    # The notice that a machine is taken away is repeated when this much time is left.
    reminder: float = 60.0
    last_reminder: float = 30.0
    # How much longer than the pool's own limits machines may live, and are waited for.
    margin: float = 600.0
    # The interval, and the timeout, of the calls that keep machines on.
    power: float = 300.0
    power_call: float = 60.0
    # The interval of polls for machines in a queue, and the longer one after a while.
    queue: float = 1.0
    longest_queue: float = 5.0
    # How long a provider may take to replace a machine that does not answer and that it has not missed yet.
    comeback: float = 900.0


@dataclass(init=False, repr=False, eq=False)
class Registers(TimeoutGroup):
    """Registry of pools."""

    # SQLite's busy timeout.
    busy: float = 10.0
    # How long after its lease a pool is presumed alive.
    lease_margin: float = 60.0
    # How long the row of a run's end waits for the next begin. Less than people notice: other processes read it.
    gather: float = 0.05


@dataclass(frozen=True, repr=False, eq=False)
class Timeouts:
    """All timeouts, in seconds."""

    liveness: Liveness = field(default_factory=Liveness)
    links: Links = field(default_factory=Links)
    start: Start = field(default_factory=Start)
    end: End = field(default_factory=End)
    interrupts: Interrupts = field(default_factory=Interrupts)
    repairs: Repairs = field(default_factory=Repairs)
    turns: TurnLeases = field(default_factory=TurnLeases)
    answers: Answers = field(default_factory=Answers)
    transfers: Transfers = field(default_factory=Transfers)
    polls: Polls = field(default_factory=Polls)
    machines: Machines = field(default_factory=Machines)
    registry: Registers = field(default_factory=Registers)
    # The factor of `scaled`: the table of agents' calls applies it to its own timeouts.
    scale: float = 1.0

    def scaled(self, factor: float) -> Timeouts:
        """Return timeouts that are ``factor`` times as long."""
        groups = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "scale"}
        return replace(
            self, scale=self.scale * factor, **{name: _scaled(group, factor) for name, group in groups.items()}
        )

    @classmethod
    def of_environment(cls) -> Timeouts:
        """Return the timeouts of this process.

        Raises SpecError if ``SKY_TIMEOUTS_SCALE`` is not a number above 0.
        """
        text = os.environ.get(VARIABLE, "1")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not 0 < factor < math.inf:
            raise SpecError(f"{VARIABLE} must be a number above 0, not {text!r}")
        return cls() if factor == 1 else cls().scaled(factor)


def _scaled(group: G, factor: float) -> G:
    values: dict[str, Any] = {one.name: getattr(group, one.name) * factor for one in fields(group)}  # type: ignore[arg-type]
    return type(group)(**values)


TIMEOUTS = Timeouts.of_environment()
