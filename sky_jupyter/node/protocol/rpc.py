"""Table of the agents' calls: what a pool's manager may ask a node.

The manager calls ``control.ask(rpc.TRANSFER_STATUS, nodes, jobs=…)``; the agent registers a handler for each row. To
add a call, add a row here, and a method ``sky_NAME`` to the part of the agent that answers it. Raise the protocol
number if managers cannot work with agents that lack the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# An agent's answer to a manager that has been replaced.
REPLACED = "another notebook has taken the pool over"


@dataclass(frozen=True)
class AgentCall:
    """Call that an agent, or the scheduler, answers.

    Parameters
    ----------
    name : str
        Its name on the wire, without the prefix that distinguishes it from Dask's own calls.
    part : str
        The attribute of the agent that answers it; empty for the agent itself.
    required, optional : tuple of str
        The names of its arguments.
    idempotent : bool
        Whether it can be repeated after its connection broke: the second call returns the same answer.
    timeout : float, optional
        Seconds to wait for the answer, unless the caller sets a timeout of its own.
    fenced : bool
        Whether only the pool's current manager and its guests may call it.
    guests : bool
        Whether guests may call it.
    same_agents : bool
        Whether it is repeated only for the same agents: another agent of a node is not called in place of the first
        one.
    joint : AgentCall, optional
        The call for all agents of a process at once. Its further argument ``incarnations`` has them by node. It answers
        by node, without agents that have another incarnation. If it takes ``branches``, which has addresses by an
        agent's address, that agent passes it on to them, and answers for them too, except for those that it cannot
        reach.
    """

    name: str
    part: str = ""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    idempotent: bool = False
    timeout: float | None = None
    fenced: bool = True
    guests: bool = True
    same_agents: bool = False
    joint: AgentCall | None = None

    @property
    def op(self) -> str:
        """Name of the operation on the wire, and of the method that handles it."""
        return f"sky_{self.name}"

    def check(self, arguments: Iterable[str]) -> None:
        """Raise TypeError if arguments of these names would be refused."""
        given = set(arguments)
        lacking, unknown = set(self.required) - given, given - {*self.required, *self.optional}
        if lacking or unknown:
            what = f"lacks {sorted(lacking)}" if lacking else f"takes no {sorted(unknown)}"
            raise TypeError(f"the agents' call {self.name!r} {what}")


# Runs of cells and functions, and their journals.
START_RUNS = AgentCall(
    "start_runs", required=("run", "ranks", "content", "incarnations"), optional=("about", "branches"), idempotent=True
)
START_RUN = AgentCall(
    "start_run",
    required=("run", "ranks", "content"),
    optional=("about",),
    idempotent=True,
    same_agents=True,
    joint=START_RUNS,
)
LIST_RUNS = AgentCall("list_runs", optional=("runs", "brief"), idempotent=True)
READ_EVENTS = AgentCall("read_events", required=("run", "start"), idempotent=True)
READ_PAGE = AgentCall("read_page", required=("run", "start", "most"), idempotent=True)
ACK_OUTPUTS = AgentCall("ack_outputs", required=("marks", "incarnations"), idempotent=True)
ACK_OUTPUT = AgentCall("ack_output", required=("marks",), idempotent=True, joint=ACK_OUTPUTS)

# Turns of the notebooks that share a pool.
TAKE_TURN = AgentCall(
    "take_turn",
    "turns",
    required=("run", "who", "label", "lease"),
    optional=("seen", "wait", "hold", "ahead", "force", "gone", "latest"),
    idempotent=True,
)
LEAVE_TURN = AgentCall("leave_turn", "turns", required=("run", "who"), optional=("news",), idempotent=True, timeout=5.0)

# The node and its kernels.
PING = AgentCall("ping", idempotent=True)
STATUS = AgentCall("status", optional=("since",), idempotent=True)
SIGNAL_KERNELS = AgentCall("signal_kernels", required=("number",), optional=("ranks", "run", "key"))
ABORT_COLLECTIVES = AgentCall("abort_collectives", optional=("ranks",))
RESTART_KERNELS = AgentCall("restart_kernels", optional=("ranks",))
END_KERNELS = AgentCall("end_kernels", required=("patience",), optional=("ranks",), guests=False)
SAMPLE_STACKS = AgentCall("sample_stacks", required=("native", "known", "window", "within"), idempotent=True)
LIST_PACKAGES = AgentCall("list_packages", idempotent=True, timeout=60.0)
# Managers and agents of all versions know this call by this name: it shows whether they are compatible.
PYTHON = AgentCall("python", idempotent=True)

# A node has moved to another machine.
CHANGE_ADDRESSES = AgentCall("change_addresses", required=("addresses",), idempotent=True, guests=False)
# Agents tell each other that a machine is about to be taken away.
NOTE_INTERRUPTION = AgentCall("note_interruption", "interruptions", required=("node", "notice"), fenced=False)

# Plugins.
FREE_PORTS = AgentCall("free_ports", required=("count",), idempotent=True)
ENTER_PLUGINS = AgentCall(
    "enter_plugins", required=("plugins", "ports", "job", "noise"), optional=("apps", "ranks", "python")
)
REINITIALIZE = AgentCall("reinitialize", required=("ports", "job", "patience"), optional=("ranks",))
CHECK_PLUGINS = AgentCall("check_plugins", required=("patience",))
LEAVE_PLUGINS = AgentCall("leave_plugins", optional=("ranks", "patience"), guests=False)

# Files and blobs.
COMPARE_FILES = AgentCall(
    "compare_files", "files", required=("listing",), optional=("path", "run", "code"), idempotent=True
)
PREPARE_TRANSFER = AgentCall("prepare_transfer", "files", required=("plan", "listing"), idempotent=True)
START_TRANSFER = AgentCall(
    "start_transfer", "files", required=("plan", "job", "path"), optional=("source", "spool"), idempotent=True
)
TRANSFER_STATUS = AgentCall("transfer_status", "files", required=("jobs",), idempotent=True, timeout=3.0)
CANCEL_TRANSFER = AgentCall("cancel_transfer", "files", required=("plan", "jobs"), idempotent=True)
LIST_FILES = AgentCall("list_files", "files", required=("path",), idempotent=True)
COMPLETE_PATH = AgentCall("complete_path", "files", required=("path",), idempotent=True, timeout=3.0)
# Files for browsing: a page of a folder, and a part of a file.
LIST_FOLDER = AgentCall(
    "list_folder", "files", required=("path",), optional=("after", "most"), idempotent=True, timeout=10.0
)
READ_RANGE = AgentCall("read_range", "files", required=("path", "start", "length"), idempotent=True, timeout=60.0)
DELETE_CODE = AgentCall("delete_code", "files", required=("names",), idempotent=True, timeout=10.0)
DELETE_BLOBS = AgentCall("delete_blobs", "files", required=("keep",), idempotent=True, timeout=10.0, guests=False)
LINK_BLOBS = AgentCall("link_blobs", "files", required=("run", "files"))
STORE_BLOBS = AgentCall("store_blobs", "files", required=("run", "names"))
CACHE_STATS = AgentCall("cache_stats", "files", timeout=10.0)
MAKE_ROOM = AgentCall("make_room", "files", required=("size",), timeout=10.0)
# Agents call one another, whichever manager they obey.
READ_PIECES = AgentCall("read_pieces", "files", required=("asked",), fenced=False)

# Values of ranks.
FETCH_VALUES = AgentCall("fetch_values", "values", required=("keys", "wanted", "turn", "content"), idempotent=True)
DISCARD_VALUES = AgentCall("discard_values", "values", required=("keys",))
RELEASE_VALUE = AgentCall("release_value", "values", required=("run", "ranks"))

LIST_NAMES = AgentCall("list_names", "names", required=("within",), idempotent=True)
# Names of ranks, for a page while a person types.
INSPECT_NAMES = AgentCall(
    "inspect_names", "inspection", required=("rank", "code", "cursor"), optional=("detail",), timeout=3.0
)

# Questions of code on ranks to the user.
ANSWER_INPUT = AgentCall("answer_input", "inputs", required=("run", "id", "value"), idempotent=True)

# Terminals. Agents of earlier versions have none, and answer None.
OPEN_TERMINAL = AgentCall(
    "open_terminal", "terminals", required=("id", "rank", "size", "term"), optional=("command",), idempotent=True
)
READ_TERMINAL = AgentCall("read_terminal", "terminals", required=("id", "after"), idempotent=True)
WRITE_TERMINAL = AgentCall("write_terminal", "terminals", required=("id", "at", "data"), idempotent=True)
RESIZE_TERMINAL = AgentCall("resize_terminal", "terminals", required=("id", "size"), idempotent=True)
CLOSE_TERMINAL = AgentCall("close_terminal", "terminals", required=("id",), idempotent=True, timeout=10.0)

# The page's debugger on a rank.
DEBUG_RANK = AgentCall("debug_rank", "debugging", required=("rank", "request"), timeout=30.0, guests=False)

# Function calls and their streams.
FIND_CALLS = AgentCall("find_calls", "tasks", required=("calls",), guests=False)
CANCEL_CALLS = AgentCall("cancel_calls", "tasks", required=("calls",), optional=("hard",), guests=False)
FORGET_CALLS = AgentCall("forget_calls", "tasks", required=("attempts",), guests=False)
READ_STREAM = AgentCall(
    "read_stream",
    "streams",
    required=("run", "number", "start", "read"),
    optional=("wants",),
    idempotent=True,
    guests=False,
)
ACK_STREAM = AgentCall("ack_stream", "streams", required=("run", "read"), idempotent=True, guests=False)
FEED_STREAM = AgentCall(
    "feed_stream", "streams", required=("run", "input", "number", "items", "answer"), idempotent=True, guests=False
)
CLOSE_STREAM = AgentCall("close_stream", "streams", required=("run",), idempotent=True, guests=False)

# Widgets.
OPEN_COMMS = AgentCall("open_comms", "comms", idempotent=True, guests=False)
SEND_COMMS = AgentCall("send_comms", "comms", required=("messages",), guests=False)

# The user's own Dask cluster.
START_DASK = AgentCall("start_dask", "user_dask", optional=("scheduler",), timeout=120.0, guests=False)

AGENT_CALLS = tuple(value for value in list(globals().values()) if isinstance(value, AgentCall))

# Calls that the scheduler answers, for the objects that ranks and notebooks share by name.
SHARED_REQUEST = AgentCall("shared_request", required=("who", "ask", "what"), optional=("data", "epoch"), fenced=False)
SHARED_CANCEL = AgentCall("shared_cancel", required=("ask",), fenced=False)
SHARED_REGISTER = AgentCall("shared_register", required=("agent", "node", "member"), fenced=False)
SHARED_LEFT = AgentCall("shared_left", required=("who",), fenced=False)

# Operation by which the scheduler pings many agents for the manager, and agents ping others for the scheduler.
PING_MANY = "sky_ping_many"

SCHEDULER_CALLS = (SHARED_REQUEST, SHARED_CANCEL, SHARED_REGISTER, SHARED_LEFT)
