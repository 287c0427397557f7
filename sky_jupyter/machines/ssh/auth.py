"""SSH log-in: agent keys, key files, certificates, and advice when all fail."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import os
import shlex
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from paramiko.agent import AgentSSH
from paramiko.pkey import PublicBlob

from ...errors import LoginRefused
from .target import PORT, Target
from .types import Passphrase

# In OpenSSH's order, so that the same key is tried first.
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
_MAGIC = b"openssh-key-v1\0"
_AGENT_PATIENCE = 10.0
_TOUCH_PATIENCE = 60.0
_MAX_KEY_FILE = 1 << 20


class _Skip(Exception):
    """Raised for a key that cannot be used; its text says why."""


@dataclass
class KeyRing:
    """Opened key files, kept in memory: a passphrase is asked for once for all hosts.

    Parameters
    ----------
    Asked for a passphrase; without it, encrypted keys are skipped.
    """

    passphrase: Passphrase | None = None
    attempts: int = 3
    _opened: dict[str, Any] = field(default_factory=dict, repr=False)
    # Why an encrypted file could not be opened.
    _given_up: dict[str, str] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def load(self, path: str) -> Any:
        """Return the key of a file, opened once; raise `_Skip` if that fails."""
        with self._lock:
            if path not in self._opened:
                self._opened[path] = self._open(path)
            return self._opened[path]

    def ask_again(self) -> None:
        """Forget refused passphrases, so that they are asked for again."""
        self._given_up.clear()

    def _open(self, path: str) -> Any:
        data = _read(path)
        if not _encrypted(data):
            return _paramiko_key(data, None, path)
        if self.passphrase is None:
            raise _Skip(f"needs its passphrase, and nobody can be asked here: ssh-add {shlex.quote(path)}")
        if path in self._given_up:
            raise _Skip(self._given_up[path])
        why = "needs its passphrase, and was given no right one"
        for attempt in range(self.attempts):
            given = self.passphrase(path, attempt)
            if given is None:
                why = "needs its passphrase, which was not given"
                break
            with contextlib.suppress(ValueError):
                return _paramiko_key(data, given.encode(), path)
        self._given_up[path] = why
        raise _Skip(why)


@dataclass(frozen=True)
class _Candidate:
    """Key to try: its name in messages, and a function that opens it."""

    label: str
    open: Callable[[], Any]


def log_in(transport: paramiko.Transport, target: Target, ring: KeyRing) -> str:
    """Log in with the first key that the host accepts, and return its label.

    Parameters
    ----------
    transport : paramiko.Transport
        The connection, with the host's key checked.
    target : Target
        The host.
    ring : KeyRing
        Opened key files.

    Returns
    -------
    str
        The key's label.

    Raises
    ------
    LoginRefused
        When no key is accepted; it lists the keys that were tried, and gives advice. Its reason is ``waited`` if the
        host closed the connection during a prompt: the answers are kept for the next attempt.
    """
    tried: list[str] = []
    offered = 0
    _still_there(transport, target)
    with _agent(target) as agent:
        for candidate in _candidates(target, ring, agent, tried):
            try:
                key = candidate.open()
            except _Skip as reason:
                tried.append(f"{candidate.label} ({reason})")
                continue
            _still_there(transport, target)
            offered += 1
            try:
                more = transport.auth_publickey(target.user, key)
            except paramiko.BadAuthenticationType as error:
                raise _no_keys(target, error.allowed_types, tried) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not transport.is_active():
                    raise _too_many(target, offered, [*tried, candidate.label], error) from None
                refused = isinstance(error, (paramiko.AuthenticationException, EOFError, OSError))
                tried.append(candidate.label if refused else f"{candidate.label} ({error})")
            else:
                if more:
                    raise _factor(target, candidate.label, list(more))
                return candidate.label
    raise _no_keys(target, _methods(transport, target), tried)


def _still_there(transport: paramiko.Transport, target: Target) -> None:
    """Raise LoginRefused if the host has closed the connection."""
    if not transport.is_active():
        raise LoginRefused(
            target.name,
            "waited",
            "ended the connection before a key was offered: answer sooner, or see what its sshd says (LoginGraceTime, "
            "MaxStartups, a ban)",
        )


def _candidates(target: Target, ring: KeyRing, agent: list[Any], tried: list[str]) -> Iterator[_Candidate]:
    """Yield keys in OpenSSH's order: agent's, named ones first; then files."""
    files = list(target.keys)
    if not files:
        usual = [str(Path.home() / ".ssh" / name) for name in _DEFAULT_KEYS]
        files = [name for name in usual if os.path.exists(name)]
    certificates = [*target.certificates, *(f"{n}-cert.pub" for n in files if os.path.exists(f"{n}-cert.pub"))]
    named = {blob: name for name in files if (blob := _public_blob(name))}
    named |= {blob: name for name in certificates if (blob := _line_blob(name))}
    held = set()
    for key in sorted(agent, key=lambda key: key.blob not in named):
        if key.blob not in named and target.identities_only:
            continue
        held.add(key.blob)
        label = f"agent key {named.get(key.blob) or key.comment or key.get_name()}"
        for certificate in _certificates_of(key.blob, certificates):
            yield _Candidate(f"{label} with {certificate}", partial(_certified, key, certificate))
        yield _Candidate(label, partial(_certified, key, None))
    left: list[tuple[bool, str]] = []
    for name in files:
        if _public_blob(name) in held:
            continue
        try:
            left.append((_encrypted(_read(name)), name))
        except _Skip as reason:
            tried.append(f"{name} ({reason})")
    for _, name in sorted(left, key=lambda item: item[0]):
        for certificate in _certificates_of(_public_blob(name), certificates):
            yield _Candidate(f"{name} with {certificate}", partial(_loaded, ring, name, certificate))
        yield _Candidate(name, partial(_loaded, ring, name, None))


def _certified(key: Any, certificate: str | None) -> Any:
    """Return the key with a certificate, or without any."""
    # Keys of files are shared by connections. An agent's key belongs to this connection and cannot be copied.
    twin = key if isinstance(key, paramiko.AgentKey) else copy.copy(key)
    twin.public_blob = None if certificate is None else PublicBlob.from_file(certificate)
    return twin


def _loaded(ring: KeyRing, path: str, certificate: str | None) -> Any:
    return _certified(ring.load(path), certificate)


def _certificates_of(blob: bytes | None, files: list[str]) -> list[str]:
    """Return the certificate files for a public key."""
    if blob is None:
        return []
    return [name for name in files if _inner_key(_line_blob(name)) == blob]


def _inner_key(certificate: bytes | None) -> bytes | None:
    """Return the public key that a certificate certifies."""
    if certificate is None:
        return None
    try:
        line = certificate[4 : 4 + int.from_bytes(certificate[:4], "big")] + b" " + base64.b64encode(certificate)
        identity = serialization.load_ssh_public_identity(line)
        if not isinstance(identity, serialization.SSHCertificate):
            return None
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return base64.b64decode(identity.public_key().public_bytes(*form).split()[1])
    except (ValueError, UnsupportedAlgorithm):
        return None


@contextlib.contextmanager
def _agent(target: Target) -> Iterator[list[Any]]:
    """Yield the agent's keys with its socket open; none if no agent answers."""
    path = os.environ.get("SSH_AUTH_SOCK") if target.agent == "SSH_AUTH_SOCK" else target.agent
    if not path:
        yield []
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_AGENT_PATIENCE)
        agent = AgentSSH()
        try:
            connection.connect(path)
            agent._connect(connection)
        except (OSError, paramiko.SSHException, struct.error):
            pass
        # A touch of a hardware key, or an answer to the agent's own question, may take a while.
        connection.settimeout(_TOUCH_PATIENCE)
        yield list(agent.get_keys())


def _read(path: str) -> bytes:
    """Return a key file's bytes; raise `_Skip` for a file that OpenSSH would not use."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            data = file.read(_MAX_KEY_FILE)
    except OSError as error:
        raise _Skip(str(error.strerror).lower()) from None
    if info.st_uid == os.getuid() and stat.S_IMODE(info.st_mode) & 0o077:
        raise _Skip("others can read it, so it is not used: chmod 600 it")
    return data


def _openssh(data: bytes) -> tuple[bytes, bytes] | None:
    """Return cipher and public key of an OpenSSH key file; None for others."""
    body = b"".join(line for line in data.splitlines() if line and not line.startswith(b"-----"))
    try:
        raw = base64.b64decode(body, validate=True) if b"OPENSSH PRIVATE KEY" in data else b""
    except ValueError:
        return None
    if not raw.startswith(_MAGIC):
        return None
    rest, fields = raw[len(_MAGIC) :], []
    try:
        for place in range(4):
            (length,) = struct.unpack(">I", rest[:4])
            fields.append(rest[4 : 4 + length])
            # The number of keys comes before the first key.
            rest = rest[4 + length + (4 if place == 2 else 0) :]
    except struct.error:
        return None
    return fields[0], fields[3]


def _encrypted(data: bytes) -> bool:
    inside = _openssh(data)
    if inside is not None:
        return inside[0] != b"none"
    return b"ENCRYPTED" in data


def _public_blob(path: str) -> bytes | None:
    """Return a key file's public key, from itself or from its ``.pub`` file."""
    try:
        with open(path, "rb") as file:
            inside = _openssh(file.read(_MAX_KEY_FILE))
    except OSError:
        inside = None
    # For a key that only the agent has, there may be only the public half: as PATH.pub, or as PATH.
    return inside[1] if inside else _line_blob(f"{path}.pub") or _line_blob(path)


def _line_blob(path: str) -> bytes | None:
    """Return the key of a file with one line such as ``ssh-ed25519 AAAA…``."""
    try:
        with open(path, "rb") as file:
            words = file.read(_MAX_KEY_FILE).split()
        return base64.b64decode(words[1], validate=True) if not words[0].startswith(b"-") else None
    except (OSError, ValueError, IndexError):
        return None


def _paramiko_key(data: bytes, passphrase: bytes | None, path: str) -> Any:
    """Return a private key for paramiko.

    Raise ValueError if the passphrase is wrong, `_Skip` if the key cannot be used.
    """
    try:
        if b"OPENSSH PRIVATE KEY" in data:
            loaded: Any = serialization.load_ssh_private_key(data, passphrase)
        else:
            loaded = serialization.load_pem_private_key(data, passphrase)
    except ValueError:
        if passphrase is not None:
            raise
        raise _Skip("is no private key that can be read") from None
    except (UnsupportedAlgorithm, TypeError) as error:
        raise _Skip(f"cannot be used: {error}") from None
    kinds: dict[Any, Any] = {
        rsa.RSAPrivateKey: paramiko.RSAKey,
        ec.EllipticCurvePrivateKey: paramiko.ECDSAKey,
        ed25519.Ed25519PrivateKey: paramiko.Ed25519Key,
    }
    for kind, made in kinds.items():
        if isinstance(loaded, kind):
            form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            return made.from_private_key(io.StringIO(loaded.private_bytes(*form).decode()))
    raise _Skip("is of a type that is not supported; use ed25519, ecdsa or rsa, or an agent")


def _methods(transport: paramiko.Transport, target: Target) -> list[str]:
    """Return the log-in methods that the host still offers."""
    try:
        transport.auth_none(target.user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, EOFError, OSError):
        pass
    return []


def _no_keys(target: Target, methods: list[str], tried: list[str]) -> LoginRefused:
    shown = f"tried {'; '.join(tried)}" if tried else "there was none to try: no agent's key and no key file"
    if methods and "publickey" not in methods:
        ways = " or ".join(methods)
        return LoginRefused(
            target.name,
            "password",
            f"lets users in by {ways} only, and passwords are not used here. Have its administrator allow keys "
            f"(PubkeyAuthentication yes), then: ssh-copy-id {_command(target)}",
        )
    also = (
        " It takes a password: copy a key there with it." if {"password", "keyboard-interactive"} & {*methods} else ""
    )
    make = "" if tried else "ssh-keygen -t ed25519, then "
    return LoginRefused(
        target.name,
        "keys",
        f"takes no key of ours for the user {target.user}; {shown}.{also} To let one in: {make}"
        f"ssh-copy-id {_command(target)}; or name the right one with key= or IdentityFile, the right user with user=",
    )


def _too_many(target: Target, offered: int, tried: list[str], error: BaseException) -> LoginRefused:
    keys = "one key" if offered == 1 else f"{offered} keys"
    return LoginRefused(
        target.name,
        "attempts",
        f"ended the connection after {keys} ({error or 'no reason given'}); tried {'; '.join(tried)}. "
        "Name the right key with key=, or with IdentityFile and IdentitiesOnly yes",
    )


def _factor(target: Target, label: str, more: list[str]) -> LoginRefused:
    return LoginRefused(
        target.name,
        "factor",
        f"takes {label} but asks for {' or '.join(more)} as well, which nobody is there to answer; "
        "allow the key alone for this user (AuthenticationMethods publickey), or use another host as jump=",
    )


def _command(target: Target) -> str:
    port = "" if target.port == PORT else f"-p {target.port} "
    return f"{port}{target.user}@{target.host}"
