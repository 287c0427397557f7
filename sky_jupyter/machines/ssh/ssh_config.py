"""Reader of ``~/.ssh/config`` and ``/etc/ssh/ssh_config``, as OpenSSH does it."""

from __future__ import annotations

import getpass
import glob
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ...errors import SpecError

SYSTEM = Path("/etc/ssh/ssh_config")
_MANY = {"identityfile", "certificatefile"}
_MAX_DEPTH = 16
_TIME = re.compile(r"(?:[0-9]{1,6}(?:[smhdw]|\Z))+\Z")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_KEYWORD = re.compile(r"(?P<key>\w+)(?:\s*=\s*|\s+|\Z)(?P<rest>.*)\Z", re.DOTALL)
# Options that lead to another host, key or check: they must not be ignored.
_UNSUPPORTED = {
    "canonicalizehostname": {"no", "none"},
    "knownhostscommand": {"none"},
    "proxyusefdpass": {"no"},
    "pubkeyauthentication": {"yes", "true", "unbound", "host-bound"},
    "revokedhostkeys": {"none"},
}


def user_file() -> Path:
    """Return the user's configuration file; ``SKY_SSH_CONFIG`` overrides it."""
    return Path(os.environ.get("SKY_SSH_CONFIG") or Path.home() / ".ssh" / "config")


def matches(pattern: str, text: str) -> bool:
    """Return True if a text matches an OpenSSH pattern (``*`` and ``?``)."""
    return _compiled(pattern).match(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = [re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern)]
    return re.compile(".*".join(parts) + r"\Z", re.DOTALL)


def in_list(patterns: Sequence[str], text: str) -> bool:
    """Return True if a text matches a pattern and none that begins with ``!``."""
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches(pattern[1:], text):
                return False
        elif matches(pattern, text):
            found = True
    return found


def expand(text: str, tokens: Mapping[str, str], where: str = "") -> str:
    """Replace ``%h`` and other tokens; raise SpecError for an unknown one."""

    def one(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "%":
            return "%"
        if letter not in tokens:
            raise SpecError(f"{where or 'ssh config'}: %{letter} in {text!r} is not one of %%, %{', %'.join(tokens)}")
        return tokens[letter]

    return re.sub(r"%(.?)", one, text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """Return a path with ``~``, ``${NAME}`` and ``%`` tokens replaced."""

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise SpecError(f"ssh config: {text!r} needs the environment variable {match[1]}, which is not set")
        return os.environ[match[1]]

    return os.path.expanduser(expand(re.sub(r"\$\{(\w+)\}", variable, text), tokens))


@dataclass
class Lookup:
    """Options of one host: the first value found for each is used.

    Parameters
    ----------
    name : str
        The host name, as the user gave it.
    user : str, optional
        The user, if given with the host.
    options : dict of str to list of str
        Values by lower-case option.
    final : bool
        True in the second pass, which ``Match final`` asks for.
    asked_for_final : bool
        True if a file has ``Match final``.
    original : str
        The host name of the first pass.
    """

    name: str
    user: str | None = None
    options: dict[str, list[str]] = field(default_factory=dict)
    final: bool = False
    asked_for_final: bool = False
    original: str = ""

    def __post_init__(self) -> None:
        self.original = self.name

    def get(self, key: str, default: str = "") -> str:
        """Return an option's value, or the default."""
        return self.options.get(key.lower(), [default])[0]

    def all(self, key: str) -> list[str]:
        """Return all of an option's values."""
        return self.options.get(key.lower(), [])

    def flag(self, key: str) -> bool:
        """Return True if an option is on."""
        return self.get(key, "no").lower() in ("yes", "true")

    def seconds(self, key: str) -> float:
        """Return an option's time, such as ``90`` or ``1m30s``; 0 for ``none``.

        The format is that of sshd_config(5), "TIME FORMATS". Raises SpecError for another one.
        """
        text = self.get(key, "none").lower()
        if text == "none":
            return 0.0
        if not _TIME.match(text):
            raise SpecError(f"host {self.original!r}: {key} {text!r} is not a time, such as 30 (seconds), 90s or 1m30s")
        return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall("([0-9]+)([a-z]?)", text)))

    def read(self, path: Path, active: bool = True, depth: int = 0) -> None:
        """Read one file's options; ignore a missing file.

        Raise SpecError for a file that is invalid, or that users other than this one and root may write: it names
        programs to run. As in OpenSSH (``readconf.c``, SSHCONF_CHECKPERM), ``~/.ssh/config`` and included files are
        checked, not the system's file or one that was named explicitly.
        """
        if depth > _MAX_DEPTH:
            raise SpecError(f"{path}: more than {_MAX_DEPTH} files include each other")
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                if depth or path == Path.home() / ".ssh" / "config":
                    _check_owner(path, os.fstat(file.fileno()))
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise SpecError(f"{path} cannot be read: {error.strerror}") from None
        inner = active
        for number, key, rest in _lines(text):
            where = f"{path}:{number}"
            if key == "host":
                inner = active and in_list(_words(rest, where), self.name)
            elif key == "match":
                # Evaluated even in a block that does not apply, so that a `final` is seen.
                inner = self._match(_words(rest, where), where, active) and active
            elif key == "include":
                for other in _included(_words(rest, where), path):
                    self.read(other, inner, depth + 1)
            elif inner:
                self._take(key, rest, where)

    def _take(self, key: str, rest: str, where: str) -> None:
        if key == "proxycommand":
            values = [rest.strip()]
        else:
            values = _words(rest, where)
        if not values or not values[0]:
            raise SpecError(f"{where}: {key} has no value")
        if key in _UNSUPPORTED and key not in self.options and values[0].lower() not in _UNSUPPORTED[key]:
            raise SpecError(
                f"{where}: {key} {values[0]} is not supported for {self.name}; "
                f"use ProxyJump, UserKnownHostsFile and the like, or give this host without it"
            )
        if {key, *self.options} >= {"proxyjump", "proxycommand"}:
            return  # the first value counts
        if key in _MANY:
            have = self.options.setdefault(key, [])
            have += [value for value in values[:1] if value not in have]
        else:
            self.options.setdefault(key, values)

    def _match(self, words: list[str], where: str, active: bool) -> bool:
        if not words:
            raise SpecError(f"{where}: Match has no criterion")
        rest = iter(words)
        result = True
        for word in rest:
            negated, name = word.startswith("!"), word.lstrip("!").lower()
            name, given, value = name.partition("=")
            if name == "all":
                found = True
            elif name == "final":
                self.asked_for_final = self.asked_for_final or active
                found = self.final
            elif name == "canonical":
                found = False  # host names are not canonicalized here
            else:
                value = word.lstrip("!").partition("=")[2] if given else next(rest, "")
                if not value:
                    raise SpecError(f"{where}: Match {name} has no value")
                found = result and active and self._criterion(name, value, where)
            result = result and found != negated
        return result

    def _criterion(self, name: str, value: str, where: str) -> bool:
        host = expand(self.get("hostname", self.name), {"h": self.original}, where)
        user = self.user or self.get("user") or own_user()
        if name == "exec":
            return self._ask(expand(value, tokens(self.original, host, self.get("port", "22"), user), where), where)
        subjects = {
            "host": host,
            "originalhost": self.original,
            "user": user,
            "localuser": own_user(),
            "tagged": self.get("tag"),
        }
        if name not in subjects:
            allowed = "all, final, canonical, exec, host, originalhost, user, localuser and tagged"
            raise SpecError(f"{where}: Match {name} is not supported; {allowed} are")
        return in_list(value.split(","), subjects[name])

    @staticmethod
    def _ask(command: str, where: str) -> bool:
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            done = subprocess.run(
                [shell, "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpecError(f"{where}: the command of Match exec failed: {error}") from None
        return done.returncode == 0


def _check_owner(path: Path, info: os.stat_result) -> None:
    """Raise SpecError for a file that another user may have written."""
    if info.st_uid not in (0, os.getuid()):
        raise SpecError(f"{path} belongs to another user, so it is not used: chown it to you")
    if info.st_mode & 0o022:
        raise SpecError(f"others can write {path}, so it is not used: chmod go-w it")


def lookup(name: str, user: str | None = None, files: Sequence[Path] | None = None) -> Lookup:
    """Return a host's options from the user's file, then the system's.

    Raise SpecError if a file is invalid or has an unsupported option.
    """
    files = [user_file(), SYSTEM] if files is None else files
    found = Lookup(name, user)
    for path in files:
        found.read(path)
    if found.asked_for_final:
        # In the second pass, hosts are matched by the HostName found in the first.
        found.final = True
        found.name = expand(found.get("hostname", name), {"h": name})
        for path in files:
            found.read(path)
    return found


def tokens(name: str, host: str, port: str, user: str) -> dict[str, str]:
    """Return the values of ``%h`` and other tokens."""
    local = socket.gethostname()
    return {
        "h": host,
        "n": name,
        "p": port,
        "r": user,
        "u": own_user(),
        "d": str(Path.home()),
        "i": str(os.getuid()),
        "k": name,
        "l": local,
        "L": local.partition(".")[0],
    }


def own_user() -> str:
    """Return the name of this process's user; the user id if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    # Not splitlines: only a line feed ends a line here.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            match = _KEYWORD.match(line)
            if match:
                yield number, match["key"].lower(), match["rest"]


def _words(text: str, where: str) -> list[str]:
    """Split a line: quotes keep blanks, a backslash keeps quotes, ``#`` comments."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            after = next(letters, "")
            keep = after in ("\\", '"', "'") or (after == " " and not quote)
            word = (word or "") + (after if keep else letter + after)
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word = (word or "") + letter
        elif letter in "\"'":
            quote, word = letter, word or ""
        elif letter.isspace():
            if word is not None:
                words.append(word)
            word = None
        elif letter == "#" and word is None:
            break
        else:
            word = (word or "") + letter
    if quote:
        raise SpecError(f"{where}: a quote is not closed")
    return words if word is None else [*words, word]


def _included(patterns: Sequence[str], path: Path) -> Iterator[Path]:
    # Relative names are relative to the folder of the user's or the system's file.
    base = SYSTEM.parent if path.is_relative_to(SYSTEM.parent) else user_file().parent
    for pattern in patterns:
        for name in sorted(glob.glob(str(base / os.path.expanduser(pattern)))):
            if os.path.isfile(name):
                yield Path(name)
