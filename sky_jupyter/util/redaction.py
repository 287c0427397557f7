"""Redaction of texts that are shown or stored: logins in URLs, and tokens."""

from __future__ import annotations

import re

HIDDEN = "…"
# A login in the URL standard's form; and one whose password contains a slash, which is not a host's port.
_LOGIN = re.compile(r"""(?<=://)(?:[^/\s'"]+|[^/\s'"@:]*:(?!\d+(?:[/\s'"]|\Z))[^\s'"]+)@""")
_TOKEN = re.compile(
    r"""([?&;][^=&#\s'"]*(?:token|secret|passw|pwd|key|sig|auth|credential)[^=&#\s'"]*=)[^&#\s'"]+""", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """Take user names, passwords and tokens out of a text's URLs."""
    return _TOKEN.sub(rf"\1{HIDDEN}", _LOGIN.sub("", text))
