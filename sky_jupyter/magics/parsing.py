"""Parser of ``%%sky`` and ``%sky`` lines; its errors are one line that helps."""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ..errors import SpecError
from ..plugins import parse_plugins
from ..plugins.core import entry_points
from ..providers import AWS, SSH, Local
from ..session.script_runs import Script
from ..spec.options import DEFAULT_GRACE
from ..spec.pool_spec import PoolSpec
from ..util.text import cleaned, nearest, rank_label, shortened
from . import parse_script_line, toml_config
from .option_table import (
    ACCEPT,
    ADD,
    ALL,
    CONCAT,
    CONFIG,
    HOST,
    HOST_SWITCHES,
    HOSTS,
    NAMED,
    NEEDED,
    PATHS,
    POD,
    POOL,
    POOL_SWITCHES,
    PREVIOUS,
    PROVIDER_OPTIONS,
    PROVIDERS,
    RANK,
    REMOVE,
    SCRIPTS,
    SEVERAL,
    SPOT,
    STACK,
    TARGETS,
    VERBS,
    Option,
    Places,
    Positional,
    chosen,
    flags_of,
    options_of,
    switches_of,
    targets_text,
)

_EXEC, _DASHES = re.compile(r"\s*exec(\s|\Z)"), re.compile(r"(?<=\s)--(?=\s|\Z)")
# Maximum letters of one word in a message; most paths fit.
_MOST_TOLD = 300


class HelpRequested(Exception):
    """Raised when a line asks for help; the message is the help."""


@dataclass(frozen=True)
class ParsedLine:
    """Parsed line; it is valid, as far as can be told without a pool.

    Attributes
    ----------
    target : str or None
        The first word after the verb: usually a pool's name (``name`` is the same); for ``wait`` and ``logs``
        the beginning of a run's id; for ``put`` and ``get`` the path to copy; for ``resize`` a number of
        nodes; for ``pull`` a variable; for ``exec`` the command.
    to : str or None
        The second word, or the value of ``--to``: the destination.
    """

    verb: str | None
    pool: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    target: str | None = None
    to: str | None = None
    take_over: bool = False
    detach: bool = False
    dry_run: bool = False
    timings: bool = False
    quiet: bool = False
    sync: bool = False
    all: bool = False
    yes: bool = False
    add: tuple[str, ...] = ()
    remove: tuple[int, ...] = ()
    ranks: tuple[int, ...] | None = None
    last: int | None = None
    pods: tuple[int, ...] | None = None
    previous: bool = False
    source: int | None = None
    on: Places | None = None
    out: str | None = None
    alias: str | None = None
    per_rank: bool = False
    stack: bool = False
    concat: bool = False
    only: Places | None = None
    push: tuple[str, ...] = ()
    shard: tuple[str, ...] = ()
    no_capture: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    timeout: float | None = None
    grace: float = DEFAULT_GRACE
    saved: int | None = None
    all_regions: bool = False
    script: Script | None = None

    def spec(self, live: PoolSpec | None = None) -> PoolSpec:
        """Return the spec asked for; the rest is as in ``live``, or the default.

        Parameters
        ----------
        live : PoolSpec, optional
            The spec of the pool that exists.

        Returns
        -------
        PoolSpec
            The spec that the pool should have.

        Raises
        ------
        SpecError
            When that spec is not valid.
        """
        spec = live or PoolSpec(provider=Local(), name=self.name or "default")
        changes = dict(self.pool)
        if "no_cluster" in changes:
            changes["options"] = replace(spec.options, cluster=not changes.pop("no_cluster"))
        if changes.pop("spot", False):
            changes["allocation"] = "spot"
        if changes.pop("yes", False):
            changes["options"] = replace(changes.get("options", spec.options), crowded=True)
        if "exit_timeout" in changes:
            options = changes.get("options", spec.options)
            changes["options"] = replace(options, exit_timeout=changes.pop("exit_timeout"))
        image: dict[str, Any] = {key: changes.pop(key) for key in ("pip", "python", "env") if key in changes}
        if self.include:
            image["includes"] = (*spec.image.includes, *self.include)
        if image:
            changes["image"] = replace(spec.image, **image)
        return replace(spec, **changes)


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, with the nearest right spelling."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")

    def print_help(self, file: Any = None) -> None:
        raise HelpRequested(self.format_help())


@functools.cache
def _parser(verb: str | None) -> _Parser:
    prog = "%%sky" if verb is None else f"%sky {verb}"
    about = "Run the cell on every rank of a pool." if verb is None else f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}."
    targets = TARGETS.get(verb or "", ())
    rows = "\n".join(f"  {target.metavar:22}{target.help}" for target in targets)
    parser = _Parser(
        prog=prog,
        # Words after a verb are not parsed by argparse, which would lose them between options.
        usage=_usage(verb) if targets else None,
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


def _usage(verb: str | None) -> str:
    targets = targets_text(verb)
    # Options after the command would be the command's.
    return f"%(prog)s [options] {targets}" if verb == "exec" else f"%(prog)s {targets} [options]"


def parse(line: str, *, cell: bool) -> ParsedLine:
    """Parse a magic's line.

    Parameters
    ----------
    line : str
        The text after ``%sky`` or ``%%sky``.
    cell : bool
        Whether it is the cell magic, which has no verb.

    Returns
    -------
    ParsedLine
        What the line asks for.

    Raises
    ------
    UsageError
        When the line is not valid; the message is one line, with the nearest correct spelling.
    HelpRequested
        When the line asks for help.
    """
    if cell and not line.strip():
        # Most cells have no options.
        return ParsedLine(verb=None)
    try:
        return _parse(line, "%%sky" if cell else "%sky", cell=cell)
    except UsageError as error:
        told = shortened(str(error), f"{line} {line!r}")
        # Words that are not in the line itself, such as those from a file of options, may be long too.
        raise UsageError(cleaned(shortened(told, told, _MOST_TOLD))) from None


def _parse(line: str, prog: str, *, cell: bool) -> ParsedLine:
    line, command = _command(line) if not cell else (line, None)
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{prog}: the line cannot be read: {error} (a quote that is not closed?)") from None
    verb = None
    if not cell:
        verb, words = _verb(words)
    script = None
    if verb in SCRIPTS:
        flags = {option.flag: True for option in options_of(verb)} | {
            switch.flag: False for switch in switches_of(verb)
        }
        parts = parse_script_line.split(verb, words, flags)
        words, script = parts.ours, parts.script
        if script is None:
            raise HelpRequested(f"{_parser(verb).format_help()}{parse_script_line.help_of(verb)}")
    parsed, rest = _parser(verb).parse_known_args(words)
    _check_spaces(verb, words, rest, prog)
    if verb == "exec":
        targets = [_checked_command(rest, command)]
    else:
        targets = _targets(verb, rest, prog) if script is None else []
    try:
        return replace(_given(verb, prog, {**vars(parsed), "targets": targets}), script=script)
    except SpecError as error:
        raise UsageError(f"{prog}: {error}") from None


def _command(line: str) -> tuple[str, str | None]:
    """Split a line of ``exec`` before its command, which a shell will parse."""
    if not _EXEC.match(line):
        return line, None
    before, dashes, command = _DASHES.sub("\0", line, count=1).partition("\0")
    return before, command.strip() if dashes else None


def _checked_command(rest: list[str], command: str | None) -> str:
    prog = "%sky exec"
    wrong = next((word for word in rest if word.startswith("-")), rest[0] if rest else None)
    if wrong is not None and (command is not None or wrong.startswith("-")):
        raise UsageError(f"{prog}: {_unknown(wrong, 'exec')}; the command comes after --")
    if not command:
        meant = shlex.join(rest) or "nvidia-smi"
        raise UsageError(f"{prog}: the command is missing, behind --, as in `{prog} -- {meant}`")
    if "\0" in command:
        raise UsageError(f"{prog}: a command has no zero bytes")
    return command


def _verb(words: list[str]) -> tuple[str, list[str]]:
    if not words:
        return "status", words
    word = words[0]
    if word in ("-h", "--help") or words == ["help"]:
        rows = [f"  {verb:10} {text}" for verb, text in VERBS.items()]
        raise HelpRequested("\n".join(["%sky VERB [options]", *rows, "`%sky VERB --help` and `%%sky?` say more."]))
    if word not in VERBS:
        if word.startswith("-"):
            line = shlex.join(words)
            raise UsageError(f"%sky: a verb comes first, such as `%sky up {line}`; `%%sky` is the first line of a cell")
        raise UsageError(f"%sky: unknown verb {word!r}{nearest(word, VERBS)}; verbs are {', '.join(VERBS)}")
    return word, words[1:]


def _check_spaces(verb: str | None, words: list[str], rest: list[str], prog: str) -> None:
    """Refuse words after an option's value, as in ``--plugins jax keras``.

    A pool's name comes directly after the verb.
    """
    if verb not in (None, "up", "auto", "restart"):
        return
    several = {option.flag for option in options_of(verb) if option.flag == "--plugins" or option.key in SEVERAL}
    free = set(rest)
    for number in range(1, len(words)):
        flag, equals, value = words[number - 1].partition("=")
        if not equals:
            flag, value = words[max(0, number - 2)], words[number - 1]
        if words[number] not in free or words[number].startswith("-"):
            continue
        if flag in several:
            more = list(itertools.takewhile(lambda word: word in free and not word.startswith("-"), words[number:]))
            meant = ",".join(word.strip(",") for word in [value, *more])
            quotes = "a value with a space in it needs quotes"
            raise UsageError(f"{prog}: {words[number]!r} is not an option; did you mean {flag} {meant}? ({quotes})")


def _targets(verb: str | None, rest: list[str], prog: str) -> list[Any]:
    """Return the words after the verb that belong to no option."""
    wrong = next((word for word in rest if word.startswith("-")), rest[0] if rest else None)
    targets = TARGETS.get(verb or "", ())
    if wrong is not None and (not targets or wrong.startswith("-")):
        raise UsageError(f"{prog}: {_unknown(wrong, verb)}")
    if len(rest) < NEEDED.get(verb or "", 0):
        raise UsageError(f"{prog}: {verb} takes {targets_text(verb)}; {targets[len(rest)].metavar} is missing")
    if len(rest) > len(targets):
        what = f"one {targets[0].metavar}" if len(targets) == 1 else targets_text(verb)
        quotes = "; a path with a space in it needs quotes" if verb in PATHS else ""
        raise UsageError(f"{prog}: {verb} takes {what}, not {' and '.join(map(repr, rest[:3]))}{quotes}")
    return [_read_target(target, word, f"{prog}: {verb}") for target, word in zip(targets, rest, strict=False)]


def _read_target(target: Positional, word: str, where: str) -> Any:
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


def _given(verb: str | None, prog: str, parsed: dict[str, Any]) -> ParsedLine:
    by_key = {option.key: option for option in options_of(verb)}
    texts: dict[str, list[str]] = {key: given for key, given in parsed.items() if key in by_key and given is not None}
    for key, words in texts.items():
        if any(not isinstance(word, str) or word == "--" for word in words):
            # Before Python 3.13, argparse takes `--` for the end of the options even as an option's value.
            raise UsageError(f"{prog}: {by_key[key].flag} takes {by_key[key].form}, not '--'")
    switches: dict[str, Any] = {switch.key: True for switch in switches_of(verb) if parsed[switch.key]}
    values: dict[str, Any] = {}
    if "config" in texts:
        config = str(_value(CONFIG, texts.pop("config"), prog))
        table = toml_config.read(config)
        for switch in switches_of(verb):
            if switch.key in table:
                on = toml_config.switch(switch.key, table.pop(switch.key), config)
                switches.setdefault(switch.key, on)
        known = [*by_key, *(switch.key for switch in switches_of(verb))]
        checked = toml_config.checked(table, by_key, known)
        values = {key: _value(by_key[key], given, f"{prog}: {config}") for key, given in checked}
    values.update({key: _value(by_key[key], given, prog) for key, given in texts.items()})
    values.update(switches, **dict(zip(("target", "to"), parsed["targets"], strict=False)))
    # (`resize` has a --yes of its own.)
    pool_keys = {option.key for option in POOL} | {switch.key for switch in POOL_SWITCHES}
    pool_keys -= {"yes"} if verb == "resize" else set()
    pool = {key: values.pop(key) for key in list(values) if key in pool_keys}
    if verb == "offers":
        pool.setdefault("provider", "aws")
    if verb == "clean":
        _choose_hosts(pool, values.pop("host", None), prog)
    else:
        _make_provider(pool, prog)
    if "plugins" in pool:
        pool["plugins"] = parse_plugins(pool["plugins"])
    if pool.get("pip"):
        _check_requirements(pool["pip"])
    given = ParsedLine(verb=verb, pool=pool, **values)
    _agree(given, prog)
    if verb in NAMED and given.target is not None:
        given = replace(given, name=given.target)
    given.spec()
    return given


def _check_requirements(texts: Sequence[str]) -> None:
    # Imported here: `packaging` takes longer to import than most of this package, and only lines with packages need it.
    from ..bootstrap.satisfied_requirements import parse as parse_requirement

    for text in texts:
        parse_requirement(text)


def _agree(given: ParsedLine, prog: str) -> None:
    """Refuse options that contradict each other."""
    if given.all and (given.name is not None or given.target is not None):
        which = "--name" if given.target is None else repr(given.target)
        raise UsageError(f"{prog}: {ALL.flag} and {which} contradict each other; give one of them")
    if given.verb == "auto" and given.target and given != ParsedLine(verb="auto", target=given.target):
        raise UsageError(f"{prog}: `%sky auto off` takes no options")
    if given.verb == "resize" and (given.target is None) == (not given.add and not given.remove):
        raise UsageError(
            f"{prog}: resize takes N, how many nodes there shall be, or {ADD.flag} and {REMOVE.flag}, which ones"
        )
    other_targets = (*PATHS, "resize", "pull", "debug", "copy", "exec", "trace")
    if given.target is not None and given.name is not None and given.verb not in other_targets:
        raise UsageError(f"{prog}: {given.target!r} and --name say each which {_what(given.verb)}; give one of them")
    if given.last is not None and given.to is not None:
        raise UsageError(f"{prog}: --last and --to contradict each other: --to writes all; give one of them")
    if given.previous and given.pods is None:
        raise UsageError(f"{prog}: {PREVIOUS.flag} is for {POD.flag}, the own log of a node's pod")
    if given.pods is not None and (given.target is not None or given.ranks is not None):
        which = RANK.flag if given.target is None else f"run {given.target}"
        raise UsageError(f"{prog}: {POD.flag} shows no run: it and {which} contradict each other; give one of them")
    if given.pool.get("spot") and given.pool.get("allocation", "spot") != "spot":
        raise UsageError(f"{prog}: {SPOT.flag} and --allocation contradict each other; give one of them")
    if given.stack and given.concat:
        raise UsageError(f"{prog}: {STACK.flag} and {CONCAT.flag} contradict each other; give one of them")
    if given.on is not None and given.only is not None and all(map(_is_number, given.on + given.only)):
        check_shown(chosen(given.only, 0) or (), chosen(given.on, 0) or (), prog)
    for one, other in itertools.combinations(("push", "shard", "no_capture"), 2):
        if both := sorted(set(getattr(given, one)) & set(getattr(given, other))):
            flags = " and ".join(f"--{key.replace('_', '-')}" for key in (one, other))
            raise UsageError(f"{prog}: {', '.join(both)} cannot be in both {flags}")


def _what(verb: str | None) -> str:
    return "pool is meant" if verb in NAMED else "run is meant"


def _is_number(place: int | slice) -> bool:
    return isinstance(place, int) and place >= 0


def check_shown(shown: Iterable[int], ranks: Iterable[int], prog: str = "%%sky") -> None:
    """Refuse to show ranks that do not run the cell."""
    if missing := sorted(set(shown).difference(ranks)):
        raise UsageError(f"{prog}: --only asks for {rank_label(missing)}, which --on leaves out")


def _value(option: Option, given: list[Any], prog: str) -> Any:
    """Return the value of an option, from the texts that were given for it."""
    if option.key == "env":
        # Variables from a TOML table are pairs already: their values may contain anything.
        pairs = [[item] if isinstance(item, tuple) else _read(option, item, prog) for item in given]
        return _variables([pair for several in pairs for pair in several], prog)
    if option.key in SEVERAL:
        return tuple(word for text in given for word in _read(option, text, prog))
    if len(given) > 1:
        raise UsageError(f"{prog}: {option.flag} is given {len(given)} times")
    return _read(option, given[0], prog)


def _read(option: Option, text: str, prog: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        if option.explains and isinstance(error, SpecError):
            raise UsageError(f"{prog}: {option.flag}: {error}") from None
        if option.key == "env":
            raise UsageError(f"{prog}: {option.flag} takes {option.form}; what was given may be secret") from None
        raise UsageError(f"{prog}: {option.flag} takes {option.form}, not {text!r}") from None


def _variables(pairs: list[tuple[str, str]], prog: str) -> dict[str, str]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{prog}: --env sets {twice} {names.count(twice)} times")
    return dict(pairs)


def _choose_hosts(pool: dict[str, Any], hosts: tuple[str, ...] | None, prog: str) -> None:
    """Replace the options for hosts by a provider of these hosts."""
    given = {item.key: pool.pop(item.key) for item in (*HOSTS, ACCEPT) if item.key in pool}
    if hosts is not None:
        pool["provider"] = SSH(hosts=hosts, **given)
    elif given:
        flags = [item.flag for item in (*HOSTS, ACCEPT) if item.key in given]
        raise UsageError(f"{prog}: {', '.join(flags)} {'are' if len(flags) > 1 else 'is'} for {HOST.flag}")


def _make_provider(pool: dict[str, Any], prog: str) -> None:
    """Replace a provider's name, and the options for it, by the provider."""
    if "hosts" in pool:
        pool.setdefault("provider", "ssh")
    name = pool.get("provider")
    factory = None if name is None else entry_points.find(entry_points.PROVIDERS, name, PROVIDERS)
    special = _special_options()
    given = {key: pool.pop(key) for key in special if key in pool}
    # A switch that is off in a file asks for nothing.
    if asked := [key for key, value in given.items() if name not in special[key][1] and value is not False]:
        kinds = [kind for kind in special[asked[0]][1] if all(kind in special[key][1] for key in asked)]
        flags = ", ".join(special[key][0] for key in asked)
        which = " or ".join(kinds or special[asked[0]][1])
        raise UsageError(f"{prog}: {flags} {'are' if len(asked) > 1 else 'is'} for --provider {which}")
    given = {key: value for key, value in given.items() if name in special[key][1]}
    if name == "ssh":
        if "hosts" not in given:
            raise UsageError(f"{prog}: --provider ssh needs --hosts, such as --hosts gpu1,me@gpu2:2222")
        pool["provider"] = SSH(**given)
        pool.setdefault("nodes", pool["provider"].default_nodes())
        return
    if name == "aws":
        pool["provider"] = AWS(**given, region=pool.pop("region", None))
        return
    if factory is not None:
        pool["provider"] = factory(**given)


def _special_options() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return flag and providers of each option that only some providers have, by key."""
    kinds: dict[str, tuple[str, tuple[str, ...]]] = {switch.key: (switch.flag, ("ssh",)) for switch in HOST_SWITCHES}
    for kind, options in PROVIDER_OPTIONS.items():
        for option in options:
            kinds[option.key] = option.flag, (*kinds.get(option.key, ("", ()))[1], kind)
    # In the order of the help.
    keys = [*(option.key for option in POOL), *(switch.key for switch in POOL_SWITCHES)]
    return {key: kinds[key] for key in keys if key in kinds}
