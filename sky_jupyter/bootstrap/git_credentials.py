"""Logins in the URLs of git repositories.

uv gives git its URL as an argument, which all users of the machine see.

So a URL is passed without its login. Variables pass the login to git, as a header for this one URL.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

_URL = re.compile(
    r"(?P<before>.*@\s*git\+)(?P<scheme>https?://)(?P<login>[^/@\s]+)@(?P<rest>[^\s;#]+)(?P<end>.*)", re.DOTALL
)
_COUNT = "GIT_CONFIG_COUNT"


def without(requirement: str) -> str:
    """Take the login out of a requirement that is a git repository's URL."""
    found = _URL.fullmatch(requirement)
    return f"{found['before']}{found['scheme']}{found['rest']}{found['end']}" if found else requirement


def variables(requirements: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that give git the logins which `without` removes.

    ``env`` is git's environment so far.
    """
    found: dict[str, str] = {}
    for item in requirements:
        match = _URL.fullmatch(item)
        if match is None:
            continue
        name, _, word = match["login"].partition(":")
        # A revision may follow the path.
        url = match["scheme"] + match["rest"].partition("@")[0]
        code = base64.b64encode(f"{unquote(name)}:{unquote(word)}".encode()).decode()
        found[f"http.{url}.extraHeader"] = f"Authorization: Basic {code}"
    if not found:
        return {}
    first = int(env[_COUNT]) if env.get(_COUNT, "").isdigit() else 0
    named = {_COUNT: str(first + len(found))}
    for number, (key, value) in enumerate(found.items(), first):
        named[f"GIT_CONFIG_KEY_{number}"], named[f"GIT_CONFIG_VALUE_{number}"] = key, value
    return named
