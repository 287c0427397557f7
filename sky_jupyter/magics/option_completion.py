"""Tab completion for ``%%sky`` and ``%sky``: our verbs, options and values."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Container, Sequence
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion

from ..errors import PoolError
from ..plugins.core import entry_points
from ..pool.open_pools import pools
from ..pool.registry.registry import Registry
from . import path_completion, pull
from .option_table import (
    ADD,
    CONFIG,
    HOST,
    HOSTS,
    NAME,
    NAMED,
    PATHS,
    REMOVE,
    TARGETS,
    VERBS,
    Option,
    options_of,
    switches_of,
)

# Seconds to wait for the registry: nobody waits longer for a list of names.
_PATIENCE = 0.2
_RUNS = 20
# Verbs that also apply to kept pools that this notebook does not manage.
_OF_KEPT = ("attach", "down")
_REGISTERED = {"plugins": entry_points.PLUGINS, "provider": entry_points.PROVIDERS}
_LINE = re.compile(r"\s*(?P<mark>%%?)sky(?P<rest>\s.*)?\Z", re.DOTALL)


def candidates(line: str) -> list[str] | None:
    """Return the words that may end a line; None if the line is not ours."""
    match = _LINE.match(line)
    if match is None or match["rest"] is None:
        return None
    *before, word = re.split(r"\s", match["rest"])
    before = [item for item in before if item]
    verb = None
    if match["mark"] == "%":
        if not before:
            return sorted(item for item in VERBS if item.startswith(word))
        verb = before[0]
        if verb not in VERBS:
            return []
    options = {option.flag: option for option in options_of(verb)}
    flag, equals, value = word.partition("=")
    if equals and flag in options:
        found = _values(options[flag], value, verb)
        return found and [f"{flag}={text}" for text in found]
    if before and before[-1] in options:
        return _values(options[before[-1]], word, verb)
    if verb == "exec" and "--" in before:
        # The command is for a shell of the node.
        return []
    if verb in PATHS and not word.startswith("-"):
        # Paths, as for --config.
        return None
    switches = [switch.flag for switch in switches_of(verb)]
    flags = [flag for flag in (*options, *switches, "--help") if flag not in before]
    targets = _targets(verb) if verb in TARGETS and verb != "resize" and not _has_target(before, options) else []
    return sorted(text for text in (*flags, *targets) if text.startswith(word))


def _has_target(words: list[str], options: Container[str]) -> bool:
    """Tell whether a word after the verb is neither a flag nor a flag's value."""
    return any(not word.startswith("-") and before not in options for before, word in itertools.pairwise(words))


def _targets(verb: str) -> list[str]:
    """Return the variables, pools or runs that a verb can mean."""
    if verb == "exec":
        return ["--"]
    if verb == "pull":
        return pull.names(pools.current)
    live = [pool.spec.name for pool in pools.all()] if verb in NAMED and verb != "attach" else []
    if verb in NAMED and verb not in _OF_KEPT:
        return live
    registry = Registry(patience=_PATIENCE)
    if not os.path.exists(registry.path):
        return live
    with contextlib.closing(registry), contextlib.suppress(PoolError):
        if verb not in _OF_KEPT:
            return [run.id for run in registry.runs(limit=_RUNS)]
        rows = [row for row in registry.pools() if row.may_outlive and not row.is_mine]
        return [*live, *(row.name for row in rows if row.host_lives or not row.is_local)]
    return live


def _values(option: Option, word: str, verb: str | None) -> list[str] | None:
    if option == CONFIG:
        # A path, which IPython knows how to complete.
        return None
    choices: Sequence[str] = option.choices
    if option == NAME:
        choices = _targets(verb) if verb in _OF_KEPT else [pool.spec.name for pool in pools.all()]
    if option.key in _REGISTERED:
        choices = entry_points.names(_REGISTERED[option.key], choices)
    current = pools.current
    if option == ADD and current is not None:
        choices = [host for host in getattr(current.spec.provider, "hosts", ()) if host not in current.ids]
    if option == REMOVE and current is not None:
        choices = [str(node) for node in range(1, current.spec.nodes)]
    if option in (HOST, HOSTS[0]):
        choices = sorted({host for pool in pools.all() for host in getattr(pool.spec.provider, "hosts", ())})
    # A list: complete the item behind the last comma.
    head, comma, last = word.rpartition(",")
    taken = set(head.lstrip("'\"").split(","))
    quote = last[:1] if last[:1] in ("'", '"') else ""
    head, last = head + comma + quote, last[len(quote) :]
    return sorted(f"{head}{choice}" for choice in choices if choice.startswith(last) and choice not in taken)


def matches(context: CompletionContext) -> dict[str, Any]:
    """Return the completions on a line of ``%sky``; none on other lines."""
    paths = path_completion.complete(context.line_with_cursor[: context.cursor_position])
    if paths is not None:
        offered = [SimpleCompletion(text=text, type="path") for text in paths[1]]
        return {"completions": offered, "matched_fragment": paths[0], "suppress": True}
    found = candidates(context.line_with_cursor[: context.cursor_position])
    if found is None:
        return {"completions": [], "suppress": False}
    token = context.token
    completions = []
    for text in found:
        # IPython replaces the token, which may begin inside a word such as --ranks-per-node.
        line = context.line_with_cursor[: context.cursor_position]
        word = line[max(line.rfind(" "), line.rfind("\t")) + 1 :]
        completions.append(SimpleCompletion(text=text[len(word) - len(token) :], type="option"))
    return {"completions": completions, "suppress": True}
