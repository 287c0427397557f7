"""The options of ``%%sky`` and ``%sky``: one table, read by the parser, the help and the completion."""

from __future__ import annotations

import argparse
import functools
import keyword
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ..bootstrap.requirements import parse as parse_requirement
from ..errors import SpecError, nearest, rank_label
from ..plugins import parse_plugins
from ..plugins.parse import FACTORIES
from ..pool.manager import DEFAULT_GRACE
from ..providers import SSH, Local
from ..spec import DEFAULT_IDLE_TIMEOUT, DEFAULT_JOURNAL, Accelerator, PoolSpec, seconds, size

PROVIDERS: dict[str, Callable[..., Any]] = {"local": Local, "ssh": SSH}
MAX_RANK = 1 << 20
_MAX_CONFIG = 1 << 20
# What may be given more than once: all of it counts.
_SEVERAL = ("pip", "push", "no_capture", "hosts", "host", "key")
_RUN_ID = re.compile(r"[0-9a-f]{1,8}\Z")


class HelpAsked(Exception):
    """The line asks for help; the message is the help."""


def _number(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


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


def _assignments(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    # A comma parts two assignments only where another NAME= follows it.
    for part in re.split(r",(?=\s*[A-Za-z_]\w*=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError
        pairs.append((name.strip(), value))
    return tuple(pairs)


def ranks(text: str) -> tuple[int, ...]:
    """Read ``"0,2-5"`` or ``"head"``; ValueError for another form."""
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


def _run_id(text: str) -> str:
    if not _RUN_ID.match(text.lower()):
        raise ValueError
    return text.lower()


def _path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError
    return text


@dataclass(frozen=True)
class Option:
    """One option: its flag, how its text is read, and what help says of it."""

    flag: str
    metavar: str
    read: Callable[[str], Any]
    form: str
    help: str
    choices: tuple[str, ...] = ()
    dest: str = ""

    @property
    def key(self) -> str:
        """The name in parsed options and in a TOML section."""
        return self.dest or self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Switch:
    """An option without a value."""

    flag: str
    help: str

    @property
    def key(self) -> str:
        """The name in parsed options and in a TOML section."""
        return self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Target:
    """What may stand behind a verb without a flag before it."""

    metavar: str
    read: Callable[[str], Any]
    form: str
    help: str


_RANKS = "ranks such as 0,2-5, or head"
_NAMES = "names with a comma between"
# What `sky.SSH` takes.
HOSTS = (
    Option("--hosts", "A,U@B:P", _words, "hosts with a comma between, such as gpu1,me@gpu2:2222", "ssh: the nodes"),
    Option("--user", "NAME", str, "a name", "ssh: who logs in where the host does not say"),
    Option("--port", "N", int, "a whole number", "ssh: the port where the host does not say"),
    Option("--key", "FILE", _words, "files with a comma between", "ssh: private keys to log in with"),
    Option("--jump", "HOST", str, "a host", "ssh: the host to go through"),
)
POOL = (
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
        "KIND:N",
        Accelerator.parse,
        "a kind and how many, such as A100 or A100:8",
        "what each node must have; its ranks share them out",
    ),
    Option("--provider", "NAME", str, "a provider's name", "what makes the nodes (local)", tuple(PROVIDERS)),
    *HOSTS,
    Option("--pip", "X,Y", _words, "requirements with a comma between", "packages that the nodes need besides"),
    Option("--env", "K=V", _assignments, "K=V, with a comma before another K=V", "environment variables of every rank"),
    Option(
        "--idle-timeout",
        "S",
        seconds,
        "a length of time such as 90s, 30m or 12h",
        f"a kept pool without a notebook and without a run ends after this long ({DEFAULT_IDLE_TIMEOUT / 3600:g}h)",
    ),
    Option(
        "--journal",
        "SIZE",
        size,
        "a size such as 64MB or 1GB",
        f"how much of each run's output is kept on each node ({DEFAULT_JOURNAL >> 20}MB)",
    ),
)
ACCEPT = Switch("--accept-host-keys", "ssh: take the key of a host that is not known yet, and keep it")
HOST_SWITCHES = (
    ACCEPT,
    Switch("--offline", "ssh: send the hosts all packages from here; they need no internet"),
)
POOL_SWITCHES = (
    Switch("--keep", "the pool outlives its notebook; `%sky attach` finds it again"),
    *HOST_SWITCHES,
)
NAME = Option("--name", "NAME", str, "a name", "which pool (the current one)")
CONFIG = Option("--config", "FILE.toml#SECTION", str, "FILE.toml#SECTION", "read options from a TOML table")
CELL = (
    Option("--on", "0,2-5|head", ranks, _RANKS, "the ranks that run the cell (all)", ("head",)),
    Option("--out", "NAME", _identifier, "a Python name", "where the CellResult goes, besides _sky"),
    Option("--only", "0,2-5|head", ranks, _RANKS, "the ranks whose output is shown (all)", ("head",)),
    Option("--push", "A,B", _identifiers, _NAMES, "send these names whatever the cell reads"),
    Option("--no-capture", "A,B|all", _identifiers, f"{_NAMES}, or all", "do not send these names", ("all",)),
    Option("--timeout", "S", _number, "a number of seconds above 0", "stop the cell after this many seconds"),
    Option("--grace", "S", _grace, "a number of seconds", f"what other ranks get after one failed ({DEFAULT_GRACE:g})"),
)
CELL_SWITCHES = (
    Switch("--detach", "return at once while the run goes on; `%sky wait` shows its end"),
    Switch("--quiet", "show only errors"),
)
ALL = Switch("--all", "every pool")
TAKE_OVER = Switch("--take-over", "take the pool from the notebook that manages it")
RANK = Option("--rank", "0,2-5|head", ranks, _RANKS, "the ranks whose output is shown (all)", ("head",), "ranks")
NODES = Option("--on", "0,2-5|head", ranks, "nodes such as 0,2-5, or head", "the nodes to bring it to (all)", ("head",))
HOST = Option("--host", "A,U@B:P", _words, "hosts with a comma between, such as gpu1,me@gpu2:2222", "those hosts")
VERBS = {
    "up": "make a pool, or see that it is there",
    "status": "the live pools and what their ranks do",
    "restart": "new kernels on the same nodes; with other pool options, a new pool of that name",
    "where": "each rank's stack, whatever it is doing, and which rank is elsewhere",
    "interrupt": "raise KeyboardInterrupt in every rank that works",
    "down": "end a pool, or --all",
    "attach": "manage a kept pool from this notebook, and show what runs on it",
    "wait": "show a run, and go on when it has ended",
    "runs": "the runs that are recorded, the newest first",
    "logs": "what a run has printed, from its first line",
    "put": "bring a file or folder to the nodes; it crosses the link once, and goes on where it broke",
    "get": "fetch a file or folder from the head, or other nodes",
    "clean": "remove what is kept for later pools: environments here, or all of ours on --host A,B",
}
_RUN = Target("RUN", _run_id, "a run's id or how it begins, such as 3f9a2c1b", "which run, by its id (the newest)")
_POOL = Target("NAME", str, "a name", "which pool (the one there is)")
_THERE = (
    "a relative one begins in the ranks' working folder: the home on other machines,\n"
    f"{'':24}on this one the folder in which the pool was made"
)
_PUT = (
    Target("LOCAL", _path, "a path", "the file or folder here; what is there already is not sent again"),
    Target(
        "REMOTE",
        _path,
        "a path",
        f"its name on the nodes (its own); with / at its end, the folder for it;\n{'':24}{_THERE}",
    ),
)
_GET = (
    Target("REMOTE", _path, "a path", f"the file or folder on the nodes;\n{'':24}{_THERE}"),
    Target(
        "LOCAL",
        _path,
        "a path",
        "its name here (its own); with / at its end, the folder for it;\n"
        f"{'':24}of several nodes, the folder that has each one's in node-K",
    ),
)
# The verbs that take more, or other things, than --name.
_OPTIONS = {
    "up": (*POOL, NAME, CONFIG),
    "restart": (*POOL, NAME, CONFIG),
    "logs": (NAME, RANK),
    "put": (NAME, NODES),
    "get": (NAME, replace(NODES, help="the nodes to fetch it from (head)")),
    "clean": (HOST, *HOSTS[1:]),
}
_SWITCHES = {"up": POOL_SWITCHES, "restart": POOL_SWITCHES, "down": (ALL,), "attach": (TAKE_OVER,), "clean": (ACCEPT,)}
TARGETS = {"attach": (_POOL,), "wait": (_RUN,), "logs": (_RUN,), "put": _PUT, "get": _GET}
# Of those, how many have to be given.
_NEEDED = {"put": 1, "get": 1}
PATHS = ("put", "get")


def options_of(verb: str | None) -> tuple[Option, ...]:
    """The options that a verb takes; those of a cell for None."""
    return (*POOL, NAME, CONFIG, *CELL) if verb is None else _OPTIONS.get(verb, (NAME,))


def switches_of(verb: str | None) -> tuple[Switch, ...]:
    """The options without a value that a verb takes; those of a cell for None."""
    return (*POOL_SWITCHES, *CELL_SWITCHES) if verb is None else _SWITCHES.get(verb, ())


def flags_of(verb: str | None) -> list[str]:
    """All flags that a verb takes; those of a cell for None."""
    return [*(option.flag for option in options_of(verb)), *(switch.flag for switch in switches_of(verb))]


@dataclass(frozen=True)
class Given:
    """What a line asked for; valid once it exists, as far as can be told without a pool.

    Attributes
    ----------
    target : str or None
        What stood behind the verb: for ``attach`` a pool's name (``name`` is the same), for
        ``wait`` and ``logs`` the beginning of a run's id, for ``put`` and ``get`` what is to be moved.
    to : str or None
        What stood behind that: where it goes.
    """

    verb: str | None
    pool: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    target: str | None = None
    to: str | None = None
    take_over: bool = False
    detach: bool = False
    quiet: bool = False
    all: bool = False
    ranks: tuple[int, ...] | None = None
    on: tuple[int, ...] | None = None
    out: str | None = None
    only: tuple[int, ...] | None = None
    push: tuple[str, ...] = ()
    no_capture: tuple[str, ...] = ()
    timeout: float | None = None
    grace: float = DEFAULT_GRACE

    def spec(self, live: PoolSpec | None = None) -> PoolSpec:
        """The spec asked for; what was not given is as in ``live``, or the default.

        Raises
        ------
        SpecError
            When something in it cannot be.
        """
        spec = live or PoolSpec(provider=Local(), name=self.name or "default")
        changes = dict(self.pool)
        image = {key: changes.pop(key) for key in ("pip", "env") if key in changes}
        if image:
            changes["image"] = replace(spec.image, **image)
        return replace(spec, **changes)


class _Parser(argparse.ArgumentParser):
    """Errors are one line for a notebook, with the nearest right spelling."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")

    def print_help(self, file: Any = None) -> None:
        raise HelpAsked(self.format_help())


@functools.cache
def _parser(verb: str | None) -> _Parser:
    prog = "%%sky" if verb is None else f"%sky {verb}"
    about = "Run the cell on every rank of a pool." if verb is None else f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}."
    targets = TARGETS.get(verb or "", ())
    rows = "\n".join(f"  {target.metavar:22}{target.help}" for target in targets)
    parser = _Parser(
        prog=prog,
        # What stands behind a verb is not argparse's: it would lose it between options.
        usage=f"%(prog)s {targets_text(verb)} [options]" if targets else None,
        description=f"{about}\n\n{rows}" if targets else about,
        allow_abbrev=False,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    for option in options_of(verb):
        parser.add_argument(
            option.flag, metavar=option.metavar, dest=option.key, action="append", help=option.help.replace("%", "%%")
        )
    for switch in switches_of(verb):
        parser.add_argument(switch.flag, dest=switch.key, action="store_true", help=switch.help.replace("%", "%%"))
    return parser


def targets_text(verb: str | None) -> str:
    """What may stand behind a verb: ``"LOCAL [REMOTE]"``."""
    needed = _NEEDED.get(verb or "", 0)
    metavars = [target.metavar for target in TARGETS.get(verb or "", ())]
    return " ".join(name if number < needed else f"[{name}]" for number, name in enumerate(metavars))


def parse(line: str, *, cell: bool) -> Given:
    """Read a magic's line.

    Parameters
    ----------
    line : str
        What stands behind ``%sky`` or ``%%sky``.
    cell : bool
        Whether it is the cell magic, which has no verb.

    Raises
    ------
    UsageError
        When it cannot be, in one line that names the nearest right spelling.
    HelpAsked
        When it asks for help.
    """
    prog = "%%sky" if cell else "%sky"
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{prog}: the line cannot be read: {error} (a quote that is not closed?)") from None
    verb = None
    if not cell:
        verb, words = _verb(words)
    parsed, rest = _parser(verb).parse_known_args(words)
    targets = _targets(verb, rest, prog)
    try:
        return _given(verb, prog, {**vars(parsed), "targets": targets})
    except SpecError as error:
        raise UsageError(f"{prog}: {error}") from None


def _verb(words: list[str]) -> tuple[str, list[str]]:
    if not words:
        return "status", words
    word = words[0]
    if word in ("-h", "--help"):
        rows = [f"  {verb:10} {text}" for verb, text in VERBS.items()]
        raise HelpAsked("\n".join(["%sky VERB [options]", *rows, "`%sky VERB --help` and `%%sky?` say more."]))
    if word not in VERBS:
        if word.startswith("-"):
            line = shlex.join(words)
            raise UsageError(f"%sky: a verb comes first, such as `%sky up {line}`; `%%sky` goes over a cell")
        raise UsageError(f"%sky: unknown verb {word!r}{nearest(word, VERBS)}; verbs are {', '.join(VERBS)}")
    return word, words[1:]


def _targets(verb: str | None, rest: list[str], prog: str) -> list[Any]:
    """What stands behind the verb, of the words that are no option's."""
    wrong = next((word for word in rest if word.startswith("-")), rest[0] if rest else None)
    targets = TARGETS.get(verb or "", ())
    if wrong is not None and (not targets or wrong.startswith("-")):
        raise UsageError(f"{prog}: {_unknown(wrong, verb)}")
    if len(rest) < _NEEDED.get(verb or "", 0):
        raise UsageError(f"{prog}: {verb} takes {targets_text(verb)}; {targets[len(rest)].metavar} is missing")
    if len(rest) > len(targets):
        what = f"one {targets[0].metavar}" if len(targets) == 1 else targets_text(verb)
        quotes = "; a path with a space in it needs quotes" if verb in PATHS else ""
        raise UsageError(f"{prog}: {verb} takes {what}, not {' and '.join(map(repr, rest[:3]))}{quotes}")
    return [_read_target(target, word, f"{prog}: {verb}") for target, word in zip(targets, rest, strict=False)]


def _read_target(target: Target, word: str, where: str) -> Any:
    try:
        return target.read(word)
    except ValueError:
        raise UsageError(f"{where} takes {target.form}, not {word!r}") from None


def _unknown(word: str, verb: str | None) -> str:
    flags = flags_of(verb)
    if not word.startswith("-"):
        hint = "; a value with a space in it needs quotes" if verb in (None, "up", "restart") else ""
        return f"{word!r} is not an option{hint}; options are {', '.join(flags)}"
    flag = word.partition("=")[0]
    near = nearest(flag, flags)
    return f"unknown option {flag}{near}" + ("" if near else f"; options are {', '.join(flags)}")


def _given(verb: str | None, prog: str, parsed: dict[str, Any]) -> Given:
    by_key = {option.key: option for option in options_of(verb)}
    texts: dict[str, list[str]] = {key: given for key, given in parsed.items() if key in by_key and given is not None}
    switches: dict[str, Any] = {switch.key: True for switch in switches_of(verb) if parsed[switch.key]}
    values: dict[str, Any] = {}
    if "config" in texts:
        config = str(_value(CONFIG, texts.pop("config"), prog))
        section = _section(config)
        for switch in switches_of(verb):
            if switch.key in section:
                on = _switch(switch.key, section.pop(switch.key), config)
                switches.setdefault(switch.key, on)
        known = [*by_key, *(switch.key for switch in switches_of(verb))]
        checked = _checked(section, by_key, known)
        values = {key: _value(by_key[key], given, f"{prog}: {config}") for key, given in checked}
    values.update({key: _value(by_key[key], given, prog) for key, given in texts.items()})
    values.update(switches, **dict(zip(("target", "to"), parsed["targets"], strict=False)))
    pool_keys = {item.key for item in (*POOL, *POOL_SWITCHES)}
    pool = {key: values.pop(key) for key in list(values) if key in pool_keys}
    if verb == "clean":
        _choose_hosts(pool, values.pop("host", None), prog)
    else:
        _make_provider(pool, prog)
    if "plugins" in pool:
        pool["plugins"] = parse_plugins(pool["plugins"])
    for text in pool.get("pip", ()):
        parse_requirement(text)
    given = Given(verb=verb, pool=pool, **values)
    _agree(given, prog)
    if verb == "attach" and given.target is not None:
        given = replace(given, name=given.target)
    given.spec()
    return given


def _agree(given: Given, prog: str) -> None:
    """Refuse options that contradict each other."""
    if given.all and given.name is not None:
        raise UsageError(f"{prog}: {ALL.flag} and --name contradict each other; give one of them")
    if given.target is not None and given.name is not None and given.verb not in PATHS:
        raise UsageError(f"{prog}: {given.target!r} and --name say each which {_what(given.verb)}; give one of them")
    if given.on is not None and given.only is not None and not set(given.only) <= set(given.on):
        missing = rank_label(sorted(set(given.only) - set(given.on)))
        raise UsageError(f"{prog}: --only asks for {missing}, which --on leaves out")
    both = sorted(set(given.push) & set(given.no_capture))
    if both:
        raise UsageError(f"{prog}: {', '.join(both)} cannot be in both --push and --no-capture")


def _what(verb: str | None) -> str:
    return "pool is meant" if verb == "attach" else "run is meant"


def _value(option: Option, given: list[Any], prog: str) -> Any:
    """The value of an option, from the texts that were given for it."""
    if option.key == "env":
        # A table's variables are pairs already: their values may hold anything.
        pairs = [[item] if isinstance(item, tuple) else _read(option, item, prog) for item in given]
        return _variables([pair for several in pairs for pair in several], prog)
    if option.key in _SEVERAL:
        return tuple(word for text in given for word in _read(option, text, prog))
    if len(given) > 1:
        raise UsageError(f"{prog}: {option.flag} is given {len(given)} times")
    return _read(option, given[0], prog)


def _read(option: Option, text: str, prog: str) -> Any:
    try:
        return option.read(text)
    except ValueError:
        raise UsageError(f"{prog}: {option.flag} takes {option.form}, not {text!r}") from None


def _variables(pairs: list[tuple[str, str]], prog: str) -> dict[str, str]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{prog}: --env sets {twice} {names.count(twice)} times")
    return dict(pairs)


def _choose_hosts(pool: dict[str, Any], hosts: tuple[str, ...] | None, prog: str) -> None:
    """Put a provider of the hosts in the place of what says how to reach them."""
    given = {item.key: pool.pop(item.key) for item in (*HOSTS, ACCEPT) if item.key in pool}
    if hosts is not None:
        pool["provider"] = SSH(hosts=hosts, **given)
    elif given:
        flags = [item.flag for item in (*HOSTS, ACCEPT) if item.key in given]
        raise UsageError(f"{prog}: {', '.join(flags)} {'are' if len(flags) > 1 else 'is'} for {HOST.flag}")


def _make_provider(pool: dict[str, Any], prog: str) -> None:
    """Put a provider in the place of its name and of what is for it alone."""
    name = pool.get("provider")
    if name is not None and name not in PROVIDERS:
        raise SpecError(f"unknown provider {name!r}{nearest(name, PROVIDERS)}; providers are {', '.join(PROVIDERS)}")
    given = {item.key: pool.pop(item.key) for item in (*HOSTS, *HOST_SWITCHES) if item.key in pool}
    flags = {item.key: item.flag for item in (*HOSTS, *HOST_SWITCHES)}
    if name == "ssh":
        if "hosts" not in given:
            raise UsageError(f"{prog}: --provider ssh needs --hosts, such as --hosts gpu1,me@gpu2:2222")
        pool["provider"] = SSH(**given)
        pool.setdefault("nodes", pool["provider"].default_nodes)
        return
    # A switch that is off in a file asks for nothing.
    asked = [flags[key] for key, value in given.items() if value is not False]
    if asked:
        raise UsageError(f"{prog}: {', '.join(asked)} {'are' if len(asked) > 1 else 'is'} for --provider ssh")
    if name is not None:
        pool["provider"] = PROVIDERS[name]()


def _section(config: str) -> dict[str, Any]:
    """The TOML table that ``FILE.toml#SECTION`` names; the whole file without a section."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    name, _, section = config.partition("#")
    text = _file(name)
    try:
        table: Any = tomllib.loads(text)
    # A number of too many digits, or lists in lists without end, are no TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--config: {name} is not TOML: {error}") from None
    for part in section.split(".") if section else ():
        if not isinstance(table, dict) or part not in table:
            known = [key for key, value in table.items() if isinstance(value, dict)] if isinstance(table, dict) else []
            there = f"; it has {', '.join(known)}" if known else ""
            raise SpecError(f"--config: {name} has no section {section!r}{nearest(part, known) or there}")
        table = table[part]
    if not isinstance(table, dict):
        raise SpecError(f"--config: {section!r} in {name} is a value, and not a section")
    return dict(table)


def _unwaiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _file(name: str) -> str:
    """The text of a file; what is no file, or is too large to be meant, is refused."""
    if not name:
        raise SpecError("--config: a file is missing; write FILE.toml#SECTION")
    try:
        # A pipe would have the notebook wait for ever.
        with open(Path(name).expanduser(), "rb", opener=_unwaiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(f"--config: {name} cannot be read: it is no file")
            data = file.read(_MAX_CONFIG + 1)
    except OSError as error:
        raise SpecError(f"--config: {name} cannot be read: {error.strerror}") from None
    except SpecError:
        raise
    except (RuntimeError, ValueError) as error:
        raise SpecError(f"--config: {name!r} is no path: {error}") from None
    if len(data) > _MAX_CONFIG:
        raise SpecError(f"--config: {name} is larger than {_MAX_CONFIG >> 20} MB: it cannot be a file of options")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"--config: {name} is not TOML: {error}") from None


def _checked(section: dict[str, Any], by_key: dict[str, Option], known: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """The options of a TOML table as the texts that a line would give, variables as pairs."""
    for name, value in section.items():
        key = name.replace("-", "_")
        if key != name and key in section:
            raise SpecError(f"--config: {key} is given twice, with and without a dash")
        if key not in by_key or key == "config":
            if isinstance(value, dict):
                raise SpecError(f"--config: {name!r} is a section; write FILE.toml#{name} to read its options")
            raise SpecError(f"--config: unknown option {name!r}{nearest(key, known)}")
        if isinstance(value, dict):
            if key != "env":
                raise SpecError(f"--config: {name} takes {by_key[key].form}, and not a table")
            yield key, [(variable, _text(text, name)) for variable, text in value.items()]
        elif isinstance(value, list):
            texts = [_text(item, name) for item in value]
            yield key, texts if key in ("env", *_SEVERAL) else [",".join(texts)]
        else:
            yield key, [_text(value, name)]


def _text(value: Any, name: str) -> str:
    """A value of a TOML table as a line would give it."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        raise SpecError(f"--config: the value of {name} is too large to be meant") from None


def _switch(name: str, value: Any, config: str) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{config}: {name} takes true or false, not {value!r}")
    return value
