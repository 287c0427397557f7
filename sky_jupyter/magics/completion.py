"""Tab completion for ``%%sky`` and ``%sky``: exactly our verbs, options and values."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from ..pool.live import pools
from .options import CONFIG, NAME, VERBS, Option, options_of, switches_of

_LINE = re.compile(r"\s*(?P<mark>%%?)sky(?P<rest>\s.*)?\Z", re.DOTALL)


def candidates(line: str) -> list[str] | None:
    """What may stand where the line ends, or None where the line is not ours."""
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
        found = _values(options[flag], value)
        return found and [f"{flag}={text}" for text in found]
    if before and before[-1] in options:
        return _values(options[before[-1]], word)
    flags = [flag for flag in (*options, *switches_of(verb), "--help") if flag not in before]
    return sorted(flag for flag in flags if flag.startswith(word))


def _values(option: Option, word: str) -> list[str] | None:
    if option == CONFIG:
        # A path, which IPython knows how to complete.
        return None
    choices = tuple(pool.spec.name for pool in pools.all()) if option == NAME else option.choices
    # A list: complete the item behind the last comma.
    head, comma, last = word.rpartition(",")
    taken = set(head.lstrip("'\"").split(","))
    quote = last[:1] if last[:1] in ("'", '"') else ""
    head, last = head + comma + quote, last[len(quote) :]
    return sorted(f"{head}{choice}" for choice in choices if choice.startswith(last) and choice not in taken)


@context_matcher()
def sky_matcher(context: CompletionContext) -> dict[str, Any]:
    """IPython's matcher: on our lines nothing but our candidates."""
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
