"""Host key checks: known_hosts files read and written as OpenSSH does it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import HostKeyError, SpecError
from .ssh_config import in_list, matches
from .target import PORT, Target

REVOKED, AUTHORITY = "@revoked", "@cert-authority"
_CERTIFICATE = "-cert-v01@openssh.com"
# Order in which host keys are requested from an unknown host.
ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_RSA = "ssh-rsa"
_NAMES = {"ssh-ed25519": "ED25519", _RSA: "RSA"}
_MAX_FILE = 64 << 20

Accepted = bool | Mapping[str, str]


@dataclass(frozen=True)
class Presented:
    """Key that a host has just proved to hold.

    Attributes
    ----------
    kind : str
        Its type, such as ``ssh-ed25519``.
    blob : bytes
        The public key.
    certificate : bytes, optional
        The host certificate that contained it.
    """

    kind: str
    blob: bytes
    certificate: bytes | None = None

    @property
    def fingerprint(self) -> str:
        """Fingerprint as ``ssh-keygen -l`` shows it."""
        return fingerprint(self.blob)


@dataclass(frozen=True)
class Known:
    """Line of a known_hosts file for the host in question."""

    marker: str
    kind: str
    blob: bytes
    file: Path
    line: int

    @property
    def place(self) -> str:
        """File and line, as OpenSSH writes them."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Unknown:
    """Host whose key is in no file: what a person is asked about."""

    host: str
    kind: str
    fingerprint: str

    def __str__(self) -> str:
        return f"the {self.kind} key fingerprint of {self.host} is {self.fingerprint}"


def fingerprint(blob: bytes) -> str:
    """Return the SHA-256 fingerprint of a public key, as OpenSSH writes it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def kind_name(kind: str) -> str:
    """Return ``ED25519``, ``ECDSA`` or ``RSA``, as OpenSSH does."""
    return _NAMES.get(kind, "ECDSA" if kind.startswith("ecdsa") else kind)


def known(target: Target) -> list[Known]:
    """Return the lines of the target's files for this host, in order.

    A host on a port other than 22 is listed as ``[host]:port``. As in OpenSSH, a line for the host without a port is
    used as well.
    """
    names = [target.host_key_name]
    if target.port != PORT and not target.host_key_alias:
        names.append(target.host.lower())
    files = [*target.known_hosts, *target.system_known_hosts]
    texts = [(Path(name), _text(Path(name))) for name in dict.fromkeys(files)]
    return [entry for name in names for path, text in texts for entry in _entries(path, text, name)]


def algorithms(entries: Sequence[Known], offered: Sequence[str] = ALGORITHMS) -> list[str]:
    """Return the order in which to request host keys: known types first.

    Certificates come first if an authority is known for the host.
    """
    have = {entry.kind for entry in entries if not entry.marker}
    first = [name for name in offered if (_RSA if name.startswith("rsa-") else name) in have]
    plain = [*first, *(name for name in offered if name not in first)]
    signed = [name + _CERTIFICATE for name in plain]
    return [*signed, *plain] if any(entry.marker == AUTHORITY for entry in entries) else plain


def check(
    target: Target,
    key: Presented,
    *,
    accept: Accepted = False,
    ask: Callable[[Unknown], bool] | None = None,
) -> None:
    """Accept a known key; accept and save a new one only if allowed.

    Parameters
    ----------
    target : Target
        The host.
    key : Presented
        The key that it presented.
    accept : bool or mapping
        True for any new key; or host -> fingerprint.
    ask : callable, optional
        Asked about a new key that ``accept`` does not cover.

    Raises
    ------
    HostKeyError
        For a key that is unknown and not accepted, changed or revoked, or whose certificate is invalid.
    """
    entries = known(target)
    _refuse_revoked(target, key, entries)
    if key.certificate is not None and _certified(target, key, entries):
        return
    plain = [entry for entry in entries if not entry.marker]
    if any(hmac.compare_digest(entry.blob, key.blob) for entry in plain):
        return
    # A line without a port may be for another server at the same address.
    own = [entry for entry in plain if _is_for(target, entry)]
    if own:
        raise _changed(target, key, next((e for e in own if e.kind == key.kind), own[0]))
    _accept(target, key, accept, ask)


def keep(target: Target, key: Presented) -> Path:
    """Append a key to the target's first file, unless it is there; return the path.

    Raise HostKeyError if the file cannot be written.
    """
    if not target.known_hosts:
        raise HostKeyError(target.name, "unknown", "UserKnownHostsFile is none: no key can be kept", key.fingerprint)
    path = Path(target.known_hosts[0])
    name = _hashed(target.host_key_name) if target.hash_known_hosts else target.host_key_name
    line = f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n".encode()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "r+b") as file:
            # Closing the file releases the lock.
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            there = _entries(path, text.decode(errors="replace"), target.host_key_name)
            if not any(not entry.marker and entry.blob == key.blob for entry in there):
                file.write(line if not text or text.endswith(b"\n") else b"\n" + line)
    except OSError as error:
        raise HostKeyError(
            target.name,
            "unknown",
            f"its key cannot be kept in {path}: {error.strerror}; make that file writable, or name another one "
            "as UserKnownHostsFile",
            key.fingerprint,
        ) from None
    return path


def _accept(target: Target, key: Presented, accept: Accepted, ask: Callable[[Unknown], bool] | None) -> None:
    new = Unknown(target.host_key_name, kind_name(key.kind), key.fingerprint)
    said = _said(target, accept)
    if said not in ("", key.fingerprint, "any"):
        raise HostKeyError(
            target.name,
            "changed",
            f"{new}, and not {said}, which accept_host_keys names: this is another host, or another key",
            key.fingerprint,
        )
    if not said and target.strict == "accept-new":
        said = "any"
    if not said and ask is not None and target.strict != "yes" and ask(new):
        said = "any"
    if not said:
        raise HostKeyError(
            target.name,
            "unknown",
            f"the authenticity of the host is not established: {new}, and no line of "
            f"{', '.join(target.known_hosts) or 'any file'} has it. Compare it with what the host says "
            "(ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub there); then accept it once with --accept-host-keys, or "
            f'sky.SSH(..., accept_host_keys={{"{target.name}": "{key.fingerprint}"}})',
            key.fingerprint,
        )
    keep(target, key)


def _said(target: Target, accept: Accepted) -> str:
    """Return a host's accepted fingerprint; ``any`` for all, empty for none."""
    if isinstance(accept, bool):
        return "any" if accept else ""
    for name in (target.name, target.host_key_name, target.host):
        if name in accept:
            return accept[name]
    return ""


def valid_fingerprint(text: str) -> str:
    """Return a fingerprint without padding; raise SpecError if it is malformed."""
    try:
        good = text.startswith("SHA256:") and len(base64.b64decode(text[7:] + "=", validate=True)) == 32
    except (ValueError, AttributeError):
        good = False
    if not good:
        raise SpecError(f"{text!r} is not a host key's fingerprint such as SHA256:…, as ssh-keygen -l shows it")
    return text.rstrip("=")


def _changed(target: Target, key: Presented, other: Known) -> HostKeyError:
    kind = kind_name(key.kind)
    return HostKeyError(
        target.name,
        "changed",
        "REMOTE HOST IDENTIFICATION HAS CHANGED. Someone could be listening to you right now, or the host was set up "
        f"anew. The fingerprint for the {kind} key sent by the remote host is {key.fingerprint}; offending "
        f"{kind_name(other.kind)} key in {other.place}. If the host has good reason to have another key, remove the "
        f"old one: ssh-keygen -f {str(other.file)!r} -R {target.host_key_name!r}",
        key.fingerprint,
    )


def _refuse_revoked(target: Target, key: Presented, entries: Iterable[Known]) -> None:
    shown = {key.blob}
    if key.certificate is not None:
        with contextlib.suppress(ValueError):
            shown.add(_Certificate(key.certificate).authority)
    for entry in entries:
        if entry.marker == REVOKED and entry.blob in shown:
            raise HostKeyError(
                target.name,
                "revoked",
                f"its {kind_name(key.kind)} key {key.fingerprint} is marked as revoked in {entry.place}: "
                "it may be stolen, and is refused",
                key.fingerprint,
            )


def _certified(target: Target, key: Presented, entries: Iterable[Known]) -> bool:
    """Return True if a known authority signed the key, False if unknown."""
    assert key.certificate is not None
    try:
        certificate = _Certificate(key.certificate)
    except ValueError:
        return False
    trusted = [entry for entry in entries if entry.marker == AUTHORITY and entry.blob == certificate.authority]
    if not trusted:
        return False
    fault = certificate.fault(target.host_key_alias or target.host)
    if fault:
        raise HostKeyError(
            target.name,
            "certificate",
            f"its host certificate, by the authority in {trusted[0].place}, is not good: {fault}",
            key.fingerprint,
        )
    return True


class _Certificate:
    """OpenSSH host certificate, parsed by the cryptography package."""

    def __init__(self, blob: bytes) -> None:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        length = int.from_bytes(blob[:4], "big")
        line = blob[4 : 4 + length] + b" " + base64.b64encode(blob)
        try:
            identity = serialization.load_ssh_public_identity(line)
        except UnsupportedAlgorithm as error:
            raise ValueError(str(error)) from None
        if not isinstance(identity, serialization.SSHCertificate):
            raise ValueError("not a certificate")
        self._certificate = identity
        encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        self.authority = base64.b64decode(identity.signature_key().public_bytes(encoding, form).split()[1])

    def fault(self, host: str) -> str:
        """Return what is wrong with the certificate for this host now; empty if nothing."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import SSHCertificateType

        mine = self._certificate
        try:
            mine.verify_cert_signature()
        except InvalidSignature:
            return "its signature is wrong"
        if mine.type is not SSHCertificateType.HOST:
            return "it is a user's certificate, not a host's"
        now = time.time()
        if now < mine.valid_after:
            return f"it is valid from {time.strftime('%Y-%m-%d %H:%M', time.localtime(mine.valid_after))} only"
        if now >= mine.valid_before:
            return f"it was valid until {time.strftime('%Y-%m-%d %H:%M', time.localtime(mine.valid_before))}"
        if mine.critical_options:
            return "it has critical options, and a host's may have none"
        names = [name.decode(errors="replace") for name in mine.valid_principals]
        if not any(matches(name.lower(), host.lower()) for name in names):
            return f"it is for {', '.join(names) or 'no host'}, not for {host}"
        return ""


def _is_for(target: Target, entry: Known) -> bool:
    """Return True if a line has the target's own name, with its port."""
    if target.port == PORT or target.host_key_alias:
        return True
    lines = _text(entry.file).split("\n")
    return bool(_entries(entry.file, lines[entry.line - 1], target.host_key_name))


def _entries(path: Path, text: str, name: str) -> list[Known]:
    """Return a file's lines for a name; skip invalid lines, as OpenSSH does."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0] in (REVOKED, AUTHORITY) else ""
        if len(fields) < 3 or fields[0].startswith(("#", "@")) or not _names(fields[0], name):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except ValueError:
            continue
        kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", "replace")
        if kind == fields[1]:
            found.append(Known(marker, kind, blob, path, number))
    return found


def _names(hosts: str, name: str) -> bool:
    if not hosts.startswith("|"):
        return in_list(hosts.lower().split(","), name.lower())
    parts = hosts.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = base64.b64decode(parts[2], validate=True), base64.b64decode(parts[3], validate=True)
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE).decode(errors="replace")
    except OSError:
        return ""
