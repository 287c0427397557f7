"""The options of ``%%sky`` and ``%sky``, for parser, help and completion."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..plugins.parse import FACTORIES
from ..providers import AWS, SSH, Kubeflow, Kubernetes, Local, Slurm, line_options
from ..spec import accelerators
from ..spec.options import DEFAULT_EXIT_TIMEOUT, DEFAULT_GRACE
from ..spec.pool_spec import (
    ALLOCATIONS,
    DEFAULT_IDLE_TIMEOUT,
    DEFAULT_JOURNAL,
    DEFAULT_PROVISIONED_TTL,
    DEFAULT_REMOTE_IDLE_TIMEOUT,
    Accelerator,
    seconds,
    size,
)
from ..util.redaction import HIDDEN, without_secrets

PROVIDERS: dict[str, Callable[..., Any]] = {
    "local": Local,
    "ssh": SSH,
    "aws": AWS,
    "kubeflow": Kubeflow,
    "kubernetes": Kubernetes,
    "slurm": Slurm,
}
MAX_RANK = 1 << 20
# Options that may be given more than once: all values count.
SEVERAL = ("pip", "push", "shard", "no_capture", "include", "hosts", "host", "key", "add")
_RUN_ID = re.compile(r"[0-9a-f]{1,8}\Z")


def _number(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def _dollars(text: str) -> float:
    return _number(text.strip().lstrip("$"))


def _grace(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError
    return text


def _identifiers(text: str) -> tuple[str, ...]:
    return tuple(_identifier(word) for word in _words(text))


def _checked_names(text: str) -> str:
    _identifiers(text)
    return text


def _assignments(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    # A comma separates two assignments only if another NAME= follows it.
    for part in re.split(r",(?=\s*[A-Za-z_]\w*=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError
        pairs.append((name.strip(), value))
    return tuple(pairs)


def without_values(line: str) -> str:
    """Return a line of options without variables' values and URLs' passwords."""
    words = shlex.split(line)
    kept, before = [], ""
    for word in words:
        flag, equals, text = word.partition("=")
        if before == "--env":
            kept.append(_hidden(word))
        elif flag == "--env" and equals:
            kept.append(f"{flag}={_hidden(text)}")
        else:
            kept.append(without_secrets(word))
        before = word
    return line if kept == words else shlex.join(kept)


def _hidden(text: str) -> str:
    try:
        return ",".join(f"{name}={HIDDEN}" for name, _ in _assignments(text))
    except ValueError:
        return HIDDEN


def ranks(text: str) -> tuple[int, ...]:
    """Parse ``"0,2-5"`` or ``"head"``; raise ValueError for another form."""
    if text == "head":
        return (0,)
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if not 0 <= low <= high < MAX_RANK:
            raise ValueError
        found.update(range(low, high + 1))
    return tuple(sorted(found))


Places = tuple[int | slice, ...]
"""Ranks or nodes as given: slices, and numbers, which count from the end if they are below 0."""


def places(text: str) -> Places:
    """Parse ranks as `ranks` does, and ``"-1"``, ``"::2"`` and ``"all"``.

    Raises ValueError for another form.
    """
    found: list[int | slice] = []
    for part in map(str.strip, text.split(",")):
        if part == "all":
            found.append(slice(None))
        elif ":" in part:
            found.append(_slice(part))
        elif part.startswith("-"):
            found.append(-ranks(part[1:])[0] if part[1:].isdecimal() and int(part[1:]) else _wrong(part))
        else:
            found += ranks(part)
    numbers = sorted({one for one in found if isinstance(one, int)})
    return (*numbers, *(one for one in found if isinstance(one, slice)))


def _slice(text: str) -> slice:
    bounds = [int(bound) if bound.strip() else None for bound in text.split(":")]
    if len(bounds) > 3 or bounds[2:] == [0] or any(abs(bound or 0) >= MAX_RANK for bound in bounds):
        raise ValueError(text)
    return slice(*bounds)


def _wrong(text: str) -> int:
    raise ValueError(text)


def chosen(given: Places | None, size: int) -> tuple[int, ...] | None:
    """Return the numbers that places mean among ``size`` of them; None for None."""
    if given is None:
        return None
    found: set[int] = set()
    for one in given:
        found.update(range(size)[one] if isinstance(one, slice) else [one + size if -size <= one < 0 else one])
    return tuple(sorted(found))


def _run_id(text: str) -> str:
    if not is_run_id(text):
        raise ValueError
    return text.lower()


def is_run_id(text: str) -> bool:
    """Return whether a text can be a run's id, or the beginning of one."""
    return _RUN_ID.match(text.lower()) is not None


def _one_rank(text: str) -> int:
    (number,) = ranks(text)
    return number


def _off(text: str) -> str:
    if text != "off":
        raise ValueError
    return text


def _debugged(text: str) -> str:
    return text if text == "off" else _rank(text)


def _count(text: str) -> str:
    int(text)
    return text


def _rank(text: str) -> str:
    if not text.isdecimal():
        raise ValueError(text)
    return text


def lines(text: str) -> int:
    """Parse a number of lines."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError
    return text


def _paths(text: str) -> tuple[str, ...]:
    return tuple(_path(word) for word in _words(text))


@dataclass(frozen=True)
class Option:
    """Option of a line: its flag, how its text is read, and its help."""

    flag: str
    metavar: str
    read: Callable[[str], Any]
    form: str
    help: str
    choices: tuple[str, ...] = ()
    dest: str = ""
    # Whether a message about a wrong text has the reader's own words, not only the form.
    explains: bool = False

    @property
    def key(self) -> str:
        """The name in parsed options and in a TOML section."""
        return self.dest or self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Switch:
    """Option without a value."""

    flag: str
    help: str

    @property
    def key(self) -> str:
        """The name in parsed options and in a TOML section."""
        return self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Positional:
    """Word that may follow a verb without a flag before it."""

    metavar: str
    read: Callable[[str], Any]
    form: str
    help: str


_RANKS = "ranks such as 0,2-5, or head"
_FORMS = "such as 0,2-5, -1 or ::2, or head, or all"
_PLACES = f"ranks {_FORMS}"
_NAMES = "names with a comma between"
# Options of `sky.SSH`.
HOSTS = (
    Option("--hosts", "A,U@B:P", _words, "hosts with a comma between, such as gpu1,me@gpu2:2222", "ssh: the nodes"),
    Option(
        "--user",
        "NAME",
        str,
        "a name",
        "ssh: who logs in where the host does not say; aws: who the image lets in (ubuntu)",
    ),
    Option("--port", "N", int, "a whole number", "ssh: the port where the host does not say"),
    Option("--key", "FILE", _words, "files with a comma between", "ssh: private keys to log in with"),
    Option("--jump", "HOST", str, "a host", "ssh, aws: the host to go through"),
)
# Further options of `sky.AWS`; its region is the pool's.
AWS_OPTIONS = (
    Option("--profile", "NAME", str, "a name", "aws: the profile of the AWS configuration (AWS_PROFILE's, or default)"),
    Option("--regions", "A,B", _words, "regions with a comma between", "aws: the regions to choose from"),
    Option(
        "--instance-type", "TYPE", str, "a type such as g5.xlarge", "aws: the machines' type (the cheapest that fits)"
    ),
    Option("--subnet", "ID", str, "a subnet's id", "aws: the subnet (those of the default VPC)"),
    Option("--ami", "ID", str, "an image's id", "aws: the image that the machines boot (Ubuntu, with drivers)"),
    Option("--iam-instance-profile", "NAME", str, "a name or ARN", "aws: the machines' role (none)"),
    Option("--reservation", "ID", str, "a reservation's id", "aws, slurm: the reservation to run in"),
    Option("--ssh-from", "CIDR", str, "a network, or any", "aws: who may reach the machines' port 22 (this machine)"),
)
OFFLINE = Switch("--offline", "send the machines all packages from here; they need no internet (not with local)")
# Options that the providers' classes declare.
_DECLARED = line_options.declared(PROVIDERS)
DECLARED = {
    name: Option(f"--{name.replace('_', '-')}", one.metavar, str, one.form, f"{', '.join(kinds)}: {one.help}")
    for name, (one, kinds) in _DECLARED.items()
    if one.metavar
}
DECLARED_SWITCHES = {
    name: Switch(f"--{name.replace('_', '-')}", f"{', '.join(kinds)}: {one.help}")
    for name, (one, kinds) in _DECLARED.items()
    if not one.metavar
}
# Options of single providers, by their kind.
PROVIDER_OPTIONS: dict[str, tuple[Option | Switch, ...]] = {
    "ssh": HOSTS,
    "aws": (*AWS_OPTIONS, *(option for option in HOSTS if option.key in ("user", "jump")), OFFLINE),
    **{
        kind: (
            *((DECLARED.get(name) or DECLARED_SWITCHES[name]) for name, (_, of) in _DECLARED.items() if kind in of),
            OFFLINE,
        )
        for kind in dict.fromkeys(kind for _, kinds in _DECLARED.values() for kind in kinds)
    },
}
POOL: tuple[Option, ...] = (
    Option("--nodes", "N", int, "a whole number", "how many nodes (1)"),
    Option("--ranks-per-node", "N", int, "a whole number", "rank processes on each node (1)"),
    Option(
        "--plugins",
        "A,B(K=V)",
        str,
        "names with a comma between, such as jax,keras",
        "frameworks to set up on every rank, in this order",
        tuple(FACTORIES),
    ),
    Option(
        "--accelerator",
        "NAME:N",
        Accelerator.parse,
        "a name and how many, such as A100, A100:8 or H100-94GB:4",
        "what each node must have; its ranks share them out",
        tuple(accelerators.names()),
        explains=True,
    ),
    Option("--provider", "NAME", str, "a provider's name", "what makes the nodes (local)", tuple(PROVIDERS)),
    *HOSTS,
    Option("--region", "NAME", str, "a region such as us-east-1", "where machines are made (the provider's default)"),
    Option(
        "--allocation",
        "KIND",
        str,
        f"one of {', '.join(ALLOCATIONS)}",
        "how machines are bought: at spot prices, which may be taken away, or on demand",
        ALLOCATIONS,
    ),
    *AWS_OPTIONS,
    *DECLARED.values(),
    Option("--pip", "X,Y", _words, "requirements with a comma between", "packages that the nodes need besides"),
    Option("--python", "3.X", str, "a version such as 3.12", "the nodes' Python (the notebook's)"),
    Option("--env", "K=V", _assignments, "K=V, with a comma before another K=V", "environment variables of every rank"),
    Option(
        "--idle-timeout",
        "S",
        seconds,
        "a length of time such as 90s, 30m or 12h",
        "an unused pool's end, without notebook and run "
        f"({DEFAULT_IDLE_TIMEOUT / 3600:g}h with --keep; {DEFAULT_REMOTE_IDLE_TIMEOUT / 60:g}m on hosts without)",
    ),
    Option(
        "--ttl",
        "S",
        seconds,
        "a length of time such as 90s, 30m or 12h",
        f"the pool ends after this time, busy or not ({DEFAULT_PROVISIONED_TTL / 3600:g}h where machines are made)",
    ),
    Option(
        "--max-cost",
        "DOLLARS",
        _dollars,
        "a number of dollars above 0, such as 20",
        "what bought machines may cost in all: the pool ends then, and asks before",
    ),
    Option(
        "--exit-timeout",
        "S",
        seconds,
        "a length of time such as 10s or 2m",
        f"what a rank gets for its exit handlers and files at its end ({DEFAULT_EXIT_TIMEOUT:g}s)",
    ),
    Option(
        "--journal",
        "SIZE",
        size,
        "a size such as 64MB or 1GB",
        f"how much of each run's output is kept on each node ({DEFAULT_JOURNAL // 10**6}MB)",
    ),
    Option(
        "--blob-limit",
        "SIZE",
        size,
        "a size such as 64MB or 1GB",
        "how much of what was sent is kept once no name holds it (a quarter of what is free)",
    ),
    Option("--vcpus", "N", _number, "a number above 0", "processors that a machine that is made must have"),
    Option("--memory-gb", "N", _number, "a number above 0", "memory that a machine that is made must have"),
    Option("--disk-gb", "N", _number, "a number above 0", "disk that a machine that is made must have"),
    Option("--max-hourly-cost", "N", _number, "a number of dollars above 0", "what a machine may cost an hour"),
)
ACCEPT = Switch("--accept-host-keys", "ssh, slurm: take the key of a host that is not known yet, and keep it")
HOST_SWITCHES = (ACCEPT, OFFLINE)
PROVIDER_OPTIONS["slurm"] += (*(option for option in AWS_OPTIONS if option.key == "reservation"), ACCEPT)
CROWDED = Switch("--yes", "local nodes may be more processes than this machine bears")
SPOT = Switch("--spot", "buy machines at spot prices: they may be taken away (--allocation spot)")
POOL_SWITCHES = (
    CROWDED,
    SPOT,
    Switch("--keep", "the pool outlives its notebook; `%sky attach` finds it again"),
    Switch("--no-cluster", "nodes are independent: each rank is a world of its own, without collectives"),
    *HOST_SWITCHES,
    *DECLARED_SWITCHES.values(),
)
NAME = Option("--name", "NAME", str, "a name", "which pool (the current one)")
CONFIG = Option("--config", "FILE.toml#SECTION", str, "FILE.toml#SECTION", "read options from a TOML table")
_ON = Option("--on", "0,2-5|head|all", places, _PLACES, "the ranks that run the cell (all)", ("head",))
_TIMEOUT = Option("--timeout", "S", _number, "a number of seconds above 0", "stop the cell after this many seconds")
CELL = (
    _ON,
    Option("--out", "NAME", _identifier, "a Python name", "where the CellResult goes, besides _sky"),
    Option("--only", "0,2-5|head", places, _PLACES, "the ranks whose output is shown (all)", ("head",)),
    Option("--push", "A,B", _identifiers, _NAMES, "send these names whatever the cell reads"),
    Option("--shard", "A,B", _identifiers, _NAMES, "send each rank its part of these only, as sky.shard cuts them"),
    Option("--no-capture", "A,B|all", _identifiers, f"{_NAMES}, or all", "do not send these names", ("all",)),
    Option("--include", "A,B", _paths, "paths with a comma between", "send these files and folders with the code"),
    _TIMEOUT,
    Option("--grace", "S", _grace, "a number of seconds", f"what other ranks get after one failed ({DEFAULT_GRACE:g})"),
    Option("--saved", "SIZE", size, "a size such as 5MB", "how much of the output's text the notebook keeps (1MB)"),
)
SYNC = Switch("--sync", "install on the nodes the packages behind the imports, as the notebook has them")
DETACH = Switch("--detach", "return at once while the run continues; `%sky wait` shows its end")
DRY_RUN = Switch("--dry-run", "slurm: show the job's script, and whether it would be taken, and submit nothing")
TIMINGS = Switch("--timings", "show where the start spent its time, to 10 ms; for a live pool, where its last one did")
QUEUED = Switch(
    "--detach", "slurm: submit the job and return; the same line without it attaches to it, also while it waits"
)
QUIET = Switch("--quiet", "show only errors")
CELL_SWITCHES = (SYNC, DETACH, QUIET)
PER_RANK = Switch("--per-rank", "once for each rank, and not once for each node")
# A script has no options about the names that are sent.
SCRIPT = tuple(option for option in CELL if option.key not in ("push", "shard", "no_capture"))
ALL = Switch("--all", "every pool")
TAKE_OVER = Switch("--take-over", "take the pool from the notebook that manages it")
RANK = Option("--rank", "0,2-5|head", ranks, _RANKS, "the ranks whose output is shown (all)", ("head",), "ranks")
LAST = Option(
    "--last", "N", lines, "a whole number above 0", "the last N lines of each rank, up to 20 MB (1 MB of all)"
)
TO_FILE = Option(
    "--to", "FILE", _path, "a path", "write all of it to FILE; of several ranks, to rank0.log and so on in it"
)
POD = Option(
    "--pod",
    "0,2-5|head",
    ranks,
    "nodes such as 0,2-5, or head",
    "the own log of these nodes' pods or machines, which says why one ended",
    ("head",),
    "pods",
)
NODES = Option("--on", "0,2-5|head", places, f"nodes {_FORMS}", "the nodes to bring it to (all)", ("head",))
PULLED = Option("--on", "0,2-5|head|all", places, _PLACES, "the ranks to bring it from (all)", ("head",))
COPIED_FROM = Option("--from", "RANK", _one_rank, "a rank, or head", "the rank to copy from", ("head",), "source")
COPIED_TO = Option("--to", "0,2-5", ranks, _RANKS, "the ranks to copy to (those that lack names)", ("head",), "ranks")
AS = Option("--as", "OTHER", _identifier, "a Python name", "what it is called in the notebook (the same)", dest="alias")
STACK = Switch("--stack", "one array of all ranks' values, which must have one shape: its first axis is the ranks")
PREVIOUS = Switch("--previous", "with --pod: the log from before it was restarted, or replaced")
CONCAT = Switch("--concat", "join arrays, tables or lists; an array that spans ranks is put together whole")
ADD = Option(
    "--add", "A,U@B:P", _words, "hosts with a comma between, such as gpu1,me@gpu2:2222", "hosts that become nodes"
)
REMOVE = Option("--remove", "2,4-5", ranks, "nodes such as 2,4-5", "nodes that are removed; the others move up")
YES = Switch("--yes", "do not ask whether what only the nodes have may be lost, or whether local nodes are too many")
EXIT_TIMEOUT = next(option for option in POOL if option.flag == "--exit-timeout")
HOST = Option("--host", "A,U@B:P", _words, "hosts with a comma between, such as gpu1,me@gpu2:2222", "those hosts")
ALL_REGIONS = Switch("--all-regions", "look in all regions of the account, not only where machines were bought")
VERBS = {
    "up": "make a pool, or see that it is there",
    "auto": "run each cell on a pool, as with %%sky and these options above it, or off again",
    "status": "the live pools and what their ranks do",
    "run": "run a script on every rank, unchanged, in fresh processes",
    "torchrun": "the same with torchrun's options, such as --nproc-per-node 4",
    "accelerate": "`accelerate launch` with its options: the same for Accelerate",
    "restart": "new kernels on the same nodes; with other pool options, a new pool of that name",
    "resize": "more or fewer nodes: what stays is kept, and all ranks get new kernels",
    "where": "each rank's stack, whatever it is doing, and which rank is elsewhere",
    "debug": "debug the failure of a rank's last cell, with a prompt here: p NAME, up, down, q",
    "exec": "run a command of the shell once on each node, shown as a cell is: %sky exec -- nvidia-smi",
    "debugger": "have the page's debugger (breakpoints, steps) debug a rank, or the notebook again: off",
    "interrupt": "raise KeyboardInterrupt in every rank that works",
    "down": "end a pool (by its name: also one that nobody manages), or --all",
    "stop": "stop bought machines: what runs there ends, their disks stay and cost; see `start`",
    "start": "start the machines of a stopped pool, and the pool on them",
    "attach": "manage a kept pool from this notebook, and show what runs on it",
    "join": "run cells here on a pool that another notebook manages, in turn with it",
    "leave": "undo `join`; the pool keeps running",
    "wait": "show a run until it has ended; an interrupt only stops the waiting (see `interrupt`)",
    "names": "each name that the nodes have: type, shape, size, ranks' differences, and origin",
    "cost": "what bought machines cost: by the hour and so far, of ended pools too",
    "offers": "the machines that a provider could make, and their prices",
    "runs": "the runs that are recorded, the newest first",
    "logs": "what a run has printed: the newest 1 MB, or more with --last and --to",
    "trace": "write what happened in runs and calls to a file that ui.perfetto.dev shows",
    "freeze": "the nodes' packages as requirements that make the same environment again",
    "put": "send a file or folder to the nodes; it crosses the link once, and resumes where it broke",
    "get": "fetch a file or folder from the head, or other nodes",
    "pull": "bring a variable of the nodes into the notebook: of one rank itself, of several a list",
    "copy": "copy names from one rank to others: those that they lack, as after a death, or A,B",
    "clean": "remove what is kept for later pools: environments here, or all of ours on --host A,B",
    "sweep": "end machines that were bought and that no pool has any more, and say what they cost",
}
_NAMES_COPIED = Positional("A,B", _checked_names, _NAMES, "which names (those that are lacking)")
_VARIABLE = Positional("NAME", _identifier, "a Python name", "what it is called on the nodes")
_RUN = Positional("RUN", _run_id, "a run's id or how it begins, such as 3f9a2c1b", "which run, by its id (the newest)")
_TRACED = (
    Positional("RUN", _path, "a run's id, or a file", "which run, by its id (all that this notebook knows)"),
    Positional("FILE", _path, "a path", "where it goes (sky-trace-POOL.json, or -RUN.json)"),
)
_COUNT = Positional("N", _count, "a whole number", "how many nodes there shall be; else --add and --remove say which")
_RANK = Positional("RANK", _rank, "a rank such as 1", "which rank")
_COMMAND = Positional("-- COMMAND", _path, "a command", "what a shell of the node reads: all behind the --, as it is")
_SCRIPT = (
    Positional("SCRIPT", _path, "a path", "a Python file of this machine; with -m before it, a module"),
    Positional("ARG...", str, "words", "the script's arguments (sys.argv[1:])"),
)
_DEBUGGED = Positional("RANK|off", _debugged, "a rank such as 1, or off", "which rank (says which one it is)")
_OFF = Positional("off", _off, "options, or off", "run cells in the notebook again")
_POOL = Positional("NAME", str, "a name", "which pool (the current one)")
# Verbs that a pool's name may follow, as it follows --name.
NAMED = (
    *("up", "status", "restart", "where", "interrupt", "down", "stop", "start", "attach", "join", "leave"),
    *("names", "cost", "runs", "freeze"),
)
# Verbs that run a script; the words after the script are its own.
SCRIPTS = ("run", "torchrun", "accelerate")
_THERE = (
    "a relative one begins in the ranks' working folder: the home on other machines,\n"
    f"{'':24}on this one the folder in which the pool was made"
)
_PUT = (
    Positional("LOCAL", _path, "a path", "the file or folder here; what is there already is not sent again"),
    Positional(
        "REMOTE",
        _path,
        "a path",
        f"its name on the nodes (its own); with / at its end, the folder for it;\n{'':24}{_THERE}",
    ),
)
_GET = (
    Positional("REMOTE", _path, "a path", f"the file or folder on the nodes;\n{'':24}{_THERE}"),
    Positional(
        "LOCAL",
        _path,
        "a path",
        "its name here (its own); with / at its end, the folder for it;\n"
        f"{'':24}of several nodes, the folder that has each one's in node-K",
    ),
)
_FINDING = tuple(DECLARED[name].flag for name, (one, _) in _DECLARED.items() if one.finds)
# Flags that choose which machines `offers` lists.
_ABOUT_MACHINES = (
    *("--provider", "--accelerator", "--region", "--allocation", "--spot", "--vcpus", "--memory-gb"),
    *("--max-hourly-cost", "--profile", "--regions", "--instance-type"),
    *_FINDING,
)
# Options of verbs; other verbs take only --name.
_OPTIONS = {
    "auto": (*POOL, NAME, CONFIG, *CELL),
    **dict.fromkeys(SCRIPTS, (*POOL, NAME, CONFIG, *SCRIPT)),
    "up": (*POOL, NAME, CONFIG),
    "restart": (*POOL, NAME, CONFIG),
    "resize": (ADD, REMOVE, NAME, EXIT_TIMEOUT),
    "down": (NAME, EXIT_TIMEOUT),
    "logs": (NAME, RANK, LAST, TO_FILE, POD),
    "put": (NAME, NODES),
    "get": (NAME, replace(NODES, help="the nodes to fetch it from (head)")),
    "pull": (NAME, PULLED, AS),
    "copy": (NAME, COPIED_FROM, COPIED_TO),
    "exec": (NAME, replace(_ON, help="the ranks on whose nodes it runs (all)"), _TIMEOUT),
    "clean": (HOST, *HOSTS[1:]),
    "offers": tuple(option for option in POOL if option.flag in _ABOUT_MACHINES),
    "sweep": tuple(option for option in POOL if option.flag in ("--provider", "--profile", "--region", *_FINDING)),
}
_SWITCHES = {
    "auto": (*POOL_SWITCHES, *CELL_SWITCHES),
    **dict.fromkeys(SCRIPTS, (*POOL_SWITCHES, *CELL_SWITCHES)),
    "up": (*POOL_SWITCHES, SYNC, DRY_RUN, QUEUED, TIMINGS),
    "restart": POOL_SWITCHES,
    "resize": (YES,),
    "down": (ALL,),
    "exec": (PER_RANK, DETACH, QUIET),
    "attach": (TAKE_OVER,),
    "logs": (PREVIOUS,),
    "pull": (STACK, CONCAT),
    "clean": (ACCEPT,),
    "offers": tuple(switch for switch in POOL_SWITCHES if switch.flag in _ABOUT_MACHINES),
    "sweep": (ALL_REGIONS,),
}
TARGETS = {
    "auto": (_OFF,),
    **dict.fromkeys(SCRIPTS, _SCRIPT),
    "resize": (_COUNT,),
    **dict.fromkeys(NAMED, (_POOL,)),
    "attach": (replace(_POOL, help="which pool (the one there is)"),),
    "join": (replace(_POOL, help="which pool, by its name or id"),),
    "cost": (replace(_POOL, help="of which pool (all)"),),
    "runs": (replace(_POOL, help="of which pool (all)"),),
    "sweep": (replace(_POOL, help="also this pool of another computer, by its name or id"),),
    "wait": (_RUN,),
    "logs": (_RUN,),
    "trace": _TRACED,
    "put": _PUT,
    "get": _GET,
    "pull": (_VARIABLE,),
    "debug": (_RANK,),
    "exec": (_COMMAND,),
    "debugger": (_DEBUGGED,),
    "copy": (_NAMES_COPIED,),
}
# How many of these must be given.
NEEDED = {**dict.fromkeys(SCRIPTS, 1), "put": 1, "get": 1, "pull": 1, "debug": 1, "exec": 1}
PATHS = ("put", "get")


def options_of(verb: str | None) -> tuple[Option, ...]:
    """Return the options that a verb takes; None is a cell."""
    return (*POOL, NAME, CONFIG, *CELL) if verb is None else _OPTIONS.get(verb, (NAME,))


def switches_of(verb: str | None) -> tuple[Switch, ...]:
    """Return the options without a value that a verb takes; None is a cell."""
    return (*POOL_SWITCHES, *CELL_SWITCHES) if verb is None else _SWITCHES.get(verb, ())


def flags_of(verb: str | None) -> list[str]:
    """Return all flags that a verb takes; None is a cell."""
    return [*(option.flag for option in options_of(verb)), *(switch.flag for switch in switches_of(verb))]


def targets_text(verb: str | None) -> str:
    """Return the words that may follow a verb, such as ``"LOCAL [REMOTE]"``."""
    needed = NEEDED.get(verb or "", 0)
    metavars = [target.metavar for target in TARGETS.get(verb or "", ())]
    return " ".join(name if number < needed else f"[{name}]" for number, name in enumerate(metavars))
