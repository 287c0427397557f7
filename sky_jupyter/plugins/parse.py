"""Parse plugins as people write them: ``jax,keras`` or ``keras(backend=torch)``.

Values are converted to the type of the plugin's argument; quotes around them are optional. Invalid texts are refused
here, before anything starts, with the nearest correct spelling of a wrong name.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import SpecError
from ..util.text import nearest
from .accelerate import accelerate
from .core import entry_points
from .core.plugin import Plugin
from .core.secrets import Secret
from .huggingface import huggingface
from .jax import jax
from .joblib import joblib, sklearn
from .keras import keras
from .torch import torch

FACTORIES: dict[str, Callable[..., Plugin]] = {
    "jax": jax,
    "keras": keras,
    "torch": torch,
    "huggingface": huggingface,
    "accelerate": accelerate,
    "joblib": joblib,
    "sklearn": sklearn,
}
_ONE = re.compile(r"(?P<name>[^()]*?)\s*(?:\((?P<inner>.*)\))?\Z", re.DOTALL)
_WORDS = {"none": None, "null": None, "true": True, "false": False}
_CLOSES = {"(": ")", "[": "]", "{": "}"}
# Messages leave out values after these words, and texts that look like tokens.
_SECRET = re.compile(r"((?:token|password|secret|key)\s*=\s*)[^,)\s]+|\bhf_\w+", re.IGNORECASE)


def parse_plugins(given: str | Plugin | Iterable[str | Plugin]) -> tuple[Plugin, ...]:
    """Parse plugins from text, or check a list of Plugin values and texts.

    Parameters
    ----------
    given : str, Plugin or iterable of those
        Such as ``"jax,keras(backend=jax)"``.

    Returns
    -------
    tuple of Plugin
        In the given order, in which their hooks are entered.

    Raises
    ------
    SpecError
        For an unknown plugin or argument, an invalid value, a plugin that is given twice or is missing,
        or a plugin that comes before one that it builds on.
    """
    try:
        plugins = _parsed([given] if isinstance(given, (str, Plugin)) else given)
    except SpecError as error:
        if _SECRET.search(str(error)):
            raise SpecError(_SECRET.sub(r"\1***", str(error))) from None
        raise
    validate_order(plugins)
    return tuple(plugins)


def _parsed(given: Iterable[str | Plugin]) -> list[Plugin]:
    plugins: list[Plugin] = []
    for item in given:
        if isinstance(item, Plugin):
            plugins.append(item)
        elif isinstance(item, str):
            plugins.extend(_read(item))
        elif item in FACTORIES.values():
            name = item.__name__
            raise SpecError(f"plugin {name} must be called: write sky.plugins.{name}()")
        else:
            raise SpecError(f"{item!r} is not a plugin; write its name, or a value such as sky.plugins.jax()")
    return plugins


def validate_order(plugins: Sequence[Plugin]) -> None:
    """Refuse duplicate plugins, missing ones, and a wrong order.

    Raise SpecError. For missing plugins and a wrong order, its message has the list as it must be written.
    """
    names = [plugin.name for plugin in plugins]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"plugin {name} is given {names.count(name)} times; give it once")
    for position, plugin in enumerate(plugins):
        for other in dict.fromkeys([*plugin.after, *plugin.needs]):
            if other not in names:
                raise SpecError(f"plugin {plugin} needs the plugin {other}; write {_as_option(_sorted(plugins))}")
        for other in (*plugin.after, *plugin.behind):
            if other in names and names.index(other) > position:
                raise SpecError(
                    f"plugin {plugin} must come after the plugin {other}; write {_as_option(_sorted(plugins))}"
                )


def _sorted(plugins: Sequence[Plugin]) -> list[str]:
    """Sort each plugin after those that it builds on, and add missing ones."""
    by_name = {plugin.name: plugin for plugin in plugins}
    done: dict[str, str] = {}

    def put(name: str) -> None:
        if name in done:
            return
        plugin = by_name.get(name)
        for other in () if plugin is None else (*plugin.after, *(name for name in plugin.behind if name in by_name)):
            put(other)
        done[name] = str(plugin or name)

    for plugin in plugins:
        put(plugin.name)
    for plugin in plugins:
        for other in plugin.needs:
            put(other)
    return list(done.values())


def _as_option(texts: Sequence[str]) -> str:
    joined = ",".join(texts)
    return f'--plugins "{joined}"' if re.search(r"[( ]", joined) else f"--plugins {joined}"


def _split(text: str, whole: str) -> list[str]:
    """Cut at the commas that are neither in brackets nor in quotes."""
    parts, start, closing, quote = [], 0, [], ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _CLOSES:
            closing.append(_CLOSES[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif char in _CLOSES.values():
            raise SpecError(f"plugins {whole!r}: there is a {char!r} too many")
        elif char == "," and not closing:
            parts.append(text[start:position].strip())
            start = position + 1
    if quote or closing:
        raise SpecError(f"plugins {whole!r}: a closing {quote or closing[-1]} is missing")
    return [*parts, text[start:].strip()]


def _read(text: str) -> list[Plugin]:
    """Parse all plugins of a text; strip quotes around all or one of them."""
    found = []
    for part in _split(text, text):
        if len(part) > 1 and part[0] in "'\"" and part[-1] == part[0]:
            found.extend(_read(part[1:-1]))
        elif part:
            found.append(_one(part))
    return found


def _one(text: str) -> Plugin:
    match = _ONE.match(text)
    name = match["name"] if match else text
    factory = entry_points.find(entry_points.PLUGINS, name, FACTORIES)
    arguments: dict[str, Any] = {}
    for part in _split((match and match["inner"]) or "", text):
        if part:
            key, value = _argument(name, factory, part)
            if key in arguments:
                raise SpecError(f"plugin {name}: argument {key} is given twice in {text!r}")
            arguments[key] = value
    made = factory(**arguments)
    if not isinstance(made, Plugin):
        origin = entry_points.origin(entry_points.PLUGINS, name)
        raise SpecError(f"plugin {name} of the distribution {origin} is not a Plugin but {made!r}")
    return made


def _argument(name: str, factory: Callable[..., Plugin], part: str) -> tuple[str, Any]:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    allowed = list(inspect.signature(factory).parameters)
    hints = _hints(factory)
    if not equals and allowed:
        shown = "..." if _is_secret(hints.get(allowed[0])) else part
        raise SpecError(f"plugin {name}: write arguments by name, as {name}({allowed[0]}={shown})")
    if not allowed:
        raise SpecError(f"plugin {name} takes no arguments")
    if key not in allowed:
        raise SpecError(
            f"plugin {name} has no argument {key!r}; its arguments are {', '.join(allowed)}{nearest(key, allowed)}"
        )
    if _is_secret(hints.get(key)) and value.lower() not in _WORDS:
        raise SpecError(
            f"plugin {name}: {key} is a secret, and a cell is saved with its notebook: leave it out to have that of "
            f"your log-in, or make the pool with sky.Compute(plugins=[...]) and a value read from elsewhere"
        )
    return key, _value(value, hints.get(key, str), f"{name}({key}={value})")


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's arguments, as far as known."""
    try:
        return typing.get_type_hints(factory)
    except Exception:
        # A factory of another distribution may use names that are imported for type checkers only.
        return {}


def _is_secret(hint: Any) -> bool:
    return Secret in (hint, *typing.get_args(hint))


def _value(text: str, hint: Any, where: str) -> Any:
    """Convert a text to the argument's type; it stays text where that is allowed."""
    kinds = typing.get_args(hint) or (hint,)
    if text[:1] in ("'", '"'):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise SpecError(f"plugin {where}: {text} is not a quoted value") from None
    if text.lower() in _WORDS and (text.lower() not in ("none", "null") or type(None) in kinds):
        return _WORDS[text.lower()]
    if not text:
        raise SpecError(f"plugin {where}: the value is missing")
    for kind in (int, float):
        # Only for arguments that are numbers: 2.10 as a version is text, not the number 2.1.
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
    raise SpecError(f"plugin {where}: the value must be {names}")
