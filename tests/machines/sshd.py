"""Real SSH servers on loopback ports, each with its own keys and configuration, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sky_jupyter.node.system import processes
from tests.ports import free_port

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
MISSING = "" if SSHD and shutil.which("ssh-keygen") else "needs OpenSSH's server and client (openssh-server)"


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "", *more: str) -> Path:
    """Make a key pair."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path), *more]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


@dataclass
class Server:
    """One sshd; made by `serve`."""

    folder: Path
    port: int
    options: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def key(self) -> Path:
        """The private key that is let in."""
        return self.folder / "id_ed25519"

    def host_key(self, kind: str = "ed25519") -> Path:
        return self.folder / f"host_{kind}"

    def known_line(self, kind: str = "ed25519", name: str | None = None) -> str:
        """A line of known_hosts for it."""
        words = self.host_key(kind).with_suffix(".pub").read_text().split()
        return f"{name or f'[127.0.0.1]:{self.port}'} {words[0]} {words[1]}\n"

    def fingerprint(self, kind: str = "ed25519") -> str:
        shown = subprocess.run(
            ["ssh-keygen", "-lf", str(self.host_key(kind))], capture_output=True, text=True, check=True
        )
        return shown.stdout.split()[1]

    def start(self) -> None:
        """Run it, until it answers."""
        assert SSHD is not None
        config = self.folder / "sshd_config"
        config.write_text("\n".join([*self.options, *self._usual(), ""]))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A test run that is killed leaves no server.
                preexec_fn=functools.partial(processes.die_with_parent, os.getpid()),  # noqa: PLW1509
            )
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
                return
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"sshd did not start: {(self.folder / 'sshd.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _usual(self) -> list[str]:
        kinds = [kind for kind in ("ed25519", "ecdsa", "rsa") if self.host_key(kind).exists()]
        return [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f"HostKey {self.host_key(kind)}" for kind in kinds),
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            f"PidFile {self.folder / 'sshd.pid'}",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "Subsystem sftp internal-sftp",
            "MaxStartups 100",
            "MaxSessions 100",
            "PrintMotd no",
            # Bash reads this user's own .bashrc for a command over SSH, unless it is not the first shell:
            # that may take long, print, or leave locks where a test kills it.
            "SetEnv SHLVL=1",
        ]

    def sessions(self) -> list[psutil.Process]:
        """The processes that serve its connections."""
        if self.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill_sessions(self) -> None:
        """End its side of all connections, as a crash would; the commands that they run live on."""
        for process in self.sessions():
            with contextlib.suppress(psutil.Error):
                if process.name() == "sshd":
                    process.kill()

    def stop(self) -> None:
        """End it with all of its connections."""
        if self.process is None:
            return
        family = self.sessions()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process = None

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")


@contextlib.contextmanager
def serve(folder: Path, *options: str, kinds: tuple[str, ...] = ("ed25519", "ecdsa")) -> Iterator[Server]:
    """An sshd that lets the current user in with a key of the folder; ``options`` stand before the usual ones."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, free_port(), list(options))
    for kind in kinds:
        if not server.host_key(kind).exists():
            keygen(server.host_key(kind), kind)
    if not server.key.exists():
        keygen(server.key)
    shutil.copy(server.key.with_suffix(".pub"), folder / "authorized_keys")
    server.start()
    try:
        yield server
    finally:
        server.stop()
